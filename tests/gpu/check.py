"""The contiguous server's engine on a GPU: memory against arithmetic, TTFT and TPOT, per mode.

    python tests/gpu/check.py --out results/            # at most 8 minutes
    python tests/gpu/check.py --tiny --out results/     # the same code on a CPU, in seconds

Needs torch, transformers and this repository, nothing else of its packages; hqq for the
quantized modes, whose rows otherwise say that it is missing. Llama models of a 1B and an 8B
class are made with random bfloat16 weights on the device. Each cell (model, mode, prompt
tokens, batch) runs the engine's own steps and is one row: of times, of bytes, and of what
arithmetic says they must be. What does not fit the time or the memory is a row that says so.
Writes ``gpu_check.json`` and prints a table. Exit code 0 when every figure fits, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    # run as a script: the repository need not be installed
    sys.path.insert(0, str(ROOT))

import torch
import transformers

from tests.gpu.cells import Cell, Row, Sweep, cells_of, run_cells
from tests.gpu.models import MODELS, TINY, make_model, parameter_bytes

#: of the whole script; what is left is kept for the report
LIMIT_S = 480.0
KEPT_S = 15.0


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the JSON")
    parser.add_argument("--tiny", action="store_true", help="a small model and short texts")
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="of the whole script")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.tiny:
        parser.error("torch sees no GPU; --tiny runs the same code on a CPU")
    deadline = started + options.seconds - (KEPT_S if options.seconds > 2 * KEPT_S else 0)
    rows = _run(device, tiny=options.tiny, started=started, deadline=deadline)
    report = {
        "device": _device(device),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "seconds": time.perf_counter() - started,
        "rows": [asdict(row) for row in rows],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "gpu_check.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows))
    failed = [row for row in rows if row.problems]
    for row in failed:
        print(f"NOT AS PREDICTED: {row.name}: {'; '.join(row.problems)}")
    measured = sum(row.skipped is None for row in rows)
    print(f"{measured} of {len(rows)} cells measured, {len(failed)} not as predicted; {path}")
    return 1 if failed or not measured else 0


def _run(device: torch.device, *, tiny: bool, started: float, deadline: float) -> list[Row]:
    rows: list[Row] = []
    shapes = [TINY] if tiny else MODELS
    for index, shape in enumerate(shapes):
        # each model gets an equal share of what is left
        until = time.perf_counter() + (deadline - time.perf_counter()) / (len(shapes) - index)
        sweep = Sweep.tiny() if tiny else Sweep.full()
        need = parameter_bytes(shape)
        if device.type == "cuda" and need * 1.25 > torch.cuda.mem_get_info(device)[0]:
            why = f"{need} B of weights and a quarter more do not fit"
            rows += [Row.not_run(shape.name, cell, why) for cell in cells_of(sweep)]
            continue
        model = make_model(shape, device)
        rows += run_cells(shape, model, device, sweep, until)
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def _device(device: torch.device) -> dict[str, object]:
    if device.type != "cuda":
        return {"type": "cpu", "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {"type": "cuda", "name": properties.name, "total_bytes": properties.total_memory}


def table(rows: list[Row]) -> str:
    """One line per cell; absent is a dash."""
    head = (
        f"{'model':6} {'mode':12} {'prompt':>6} {'batch':>5} {'TTFT s':>9} {'TPOT ms':>9} "
        f"{'KV used MiB':>12} {'predicted':>10} {'temporary':>10} {'max alloc':>10} remark"
    )
    return "\n".join([head, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    cell: Cell = row.cell
    tpot = None if row.tpot_s is None else row.tpot_s * 1e3
    remark = row.skipped or ("; ".join(row.problems) if row.problems else "ok")
    return (
        f"{row.model:6} {cell.mode:12} {cell.prompt_tokens:6} {cell.batch:5} "
        f"{_number(row.ttft_s, 9, 4)} {_number(tpot, 9, 2)} {_mib(row.used_bytes, 12)} "
        f"{_mib(row.predicted_used_bytes, 10)} {_mib(row.temporary_peak_bytes, 10)} "
        f"{_mib(row.max_allocated_bytes, 10)} {remark}"
    )


def _mib(size: int | None, width: int) -> str:
    return _number(None if size is None else size / 2**20, width, 2)


def _number(value: float | None, width: int, digits: int) -> str:
    return "-".rjust(width) if value is None else f"{value:{width}.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
