"""The knees that ``scenarios/knee.py`` finds over real HTTP beside those that the models have.

    python -m tests.simulated.knee_search_table [--seeds 0-9] [--json FILE]

Starts a modelled server for each seed, runs the search against it, headless as its users do,
and prints a table, each row when it is known. The truth comes from the oracle of
``tests.knee_search``, which watches the engine's core in virtual time and shares no code with the
analysis. Half a minute to eight a server, on a machine that does nothing else. The exit code is 1
when a knee is off by more than one level and 5 %, or its cause is another.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from servers.simulated.model import EngineModel, Layout, StepCost
from tests.knee_search.cases import Case, Kind, Law
from tests.knee_search.oracle import truth_of
from tests.scenarios.locust_process import end, started
from tests.simulated.support import running

COUNT = 10
PROMPT, OUTPUT = 96, 24
#: highest level that may be asked for
MOST = 32
_PLENTY = 256
_MAX_MODEL_LEN, _BYTES_PER_TOKEN, _BLOCK = 256, 1024, 16
_LIMIT_S = 1200.0
_MAX_LEVEL_S = 120.0
_KINDS: tuple[Kind, ...] = ("paged", "contiguous", "scheduler", "compute")


@dataclass(frozen=True)
class Row:
    """One server: what the oracle says, and what the search found."""

    name: str
    last_good: int | None
    cause: str | None
    found: float | None
    found_cause: str | None
    low: float | None
    high: float | None
    status: str
    took_s: float

    @property
    def same(self) -> bool:
        """Within one level or 5 % of the truth, for the same reason; or none where none is."""
        if self.last_good is None or self.found is None:
            return self.last_good is None and self.status == "not_reached"
        near = abs(self.found - self.last_good) <= max(1.0, 0.05 * self.last_good)
        return near and self.found_cause == self.cause


def server(seed: int) -> Case:
    """A server whose limit lies among the levels, or for one seed in ten beyond them."""
    draw = random.Random(f"http/{seed}")
    kind = _KINDS[seed % len(_KINDS)]
    aim = draw.choice((3, 4, 5, 7, 9, 12, 16, 19)) if seed % 10 != 9 else 2 * MOST
    paged = kind == "paged" or (kind != "contiguous" and draw.random() < 0.5)
    layout: Layout = "paged" if paged else "contiguous"
    base_s = draw.uniform(0.012, 0.02)
    each_s = draw.uniform(1.0, 3.0) * base_s / aim if kind == "compute" else 0.0
    whole = -(-(PROMPT + OUTPUT) // _BLOCK)
    slots = aim if kind == "contiguous" else _PLENTY
    model = EngineModel(
        layout=layout,
        cost=StepCost(base_s, each_s, 0.0, base_s / draw.uniform(4_000, 8_000)),
        max_num_seqs=aim if kind == "scheduler" else _PLENTY,
        max_num_batched_tokens=2048,
        max_model_len=_MAX_MODEL_LEN,
        num_blocks=(aim if kind == "paged" else _PLENTY) * whole + 1,
        block_size=_BLOCK,
        kv_budget_bytes=slots * _MAX_MODEL_LEN * _BYTES_PER_TOKEN,
        bytes_per_token=_BYTES_PER_TOKEN,
    )
    return Case(
        name=f"h{seed:02}-{layout}-{kind}",
        kind=kind,
        goal="slo" if kind == "compute" else "capacity",
        model=model,
        law=Law(PROMPT, OUTPUT, 0.0, 0.0, 0.0),
        ttft_limit_s=10.0 if kind == "compute" else None,
        # a step reads prompts now and then, so a little more than the decode at the aim
        tpot_limit_s=1.06 * (base_s + aim * each_s) if kind == "compute" else None,
        aim=aim,
        max_level=MOST,
        start=None,
        states_seats=not paged,
        scrape_s=0.5,
        max_level_s=_MAX_LEVEL_S,
    )


def options(item: Case) -> tuple[str, ...]:
    """The command line of the simulated server."""
    model, cost = item.model, item.model.cost
    return (
        *("--mode", "modelled", "--layout", model.layout),
        *("--step-base", f"{cost.base_s:.9f}"),
        *("--step-per-running", f"{cost.per_running_s:.9f}", "--step-per-context", "0"),
        *("--prefill-rate", f"{1 / cost.per_prefill_s:.3f}"),
        *("--max-num-seqs", str(model.max_num_seqs)),
        *("--max-num-batched-tokens", str(model.max_num_batched_tokens)),
        *("--max-model-len", str(model.max_model_len)),
        *("--num-blocks", str(model.num_blocks), "--block-size", str(model.block_size)),
        *("--kv-budget", str(model.kv_budget_bytes)),
        *("--kv-bytes-per-token", str(model.bytes_per_token)),
    )


def search(item: Case) -> Row:
    """Run the scenario against one server."""
    truth = truth_of(item)
    slo = ""
    if item.tpot_limit_s is not None and item.ttft_limit_s is not None:
        slo = f"ttft:{item.ttft_limit_s * 1000:.3f} tpot:{item.tpot_limit_s * 1000:.3f}"
    begun_s = time.monotonic()
    with running(*options(item)) as url, tempfile.TemporaryDirectory() as folder:
        load = (
            *("--headless", "--backends", f"m={url}", "--slo", slo, "--prometheus-url", "none"),
            *("--prompt-tokens", str(PROMPT), "--output-tokens", str(OUTPUT)),
            *("--max-concurrency", str(MOST), "--max-level-seconds", f"{_MAX_LEVEL_S:g}"),
            "--only-summary",
        )
        with started(*load, folder=Path(folder), scenario="knee") as process:
            ended = end(process, _LIMIT_S)
        paths = list(Path(folder).glob("results/*/summary.json"))
        assert len(paths) == 1, ended.text
        summary = json.loads(paths[0].read_text(encoding="ascii"))
    found: dict[str, Any] = next(f for f in summary["found"] if f["goal"] == item.goal)
    return Row(
        name=item.name,
        last_good=truth.last_good,
        cause=truth.cause,
        found=found["last_good"],
        found_cause=found["cause"],
        low=found["low"],
        high=found["high"],
        status=found["status"],
        took_s=round(time.monotonic() - begun_s, 1),
    )


HEAD = f"{'server':<28}{'truth':<22}{'found':<22}{'95 % interval':<16}took"


def line_of(row: Row) -> str:
    """A row of the table."""
    true = "none in range" if row.last_good is None else f"{row.last_good} {row.cause}"
    found = row.status if row.found is None else f"{row.found:g} {row.found_cause}"
    interval = f"{row.low} to {row.high}"
    mark = "" if row.same else "  DIFFERS"
    return f"{row.name:<28}{true:<22}{found:<22}{interval:<16}{row.took_s:g} s{mark}"


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str]) -> int:
    """Search all, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=_seeds, default=_seeds(f"0-{COUNT - 1}"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    rows: list[Row] = []
    print(HEAD)
    for seed in asked.seeds:
        rows.append(search(server(seed)))
        print(line_of(rows[-1]), flush=True)
    print(f"{sum(row.same for row in rows)} of {len(rows)} as the oracle says")
    if asked.json is not None:
        body = json.dumps([{**asdict(row), "same": row.same} for row in rows], indent=2)
        asked.json.write_text(body + "\n", encoding="utf-8")
    return 0 if all(row.same for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
