"""Stores runs until it is killed: ``python -m tests.nightly.kill_writer FILE START``."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.nightly.figures import StoredFigure
from harness.nightly.history import History, StoredRun

FIGURES = 400


def figures() -> list[StoredFigure]:
    return [
        StoredFigure("paged", f"c{i}", "ttft_p50_s", repeat, 0.1, 600)
        for i in range(FIGURES // 4)
        for repeat in range(4)
    ]


def main(path: Path, start: int) -> None:
    with History.open(path) as history:
        print("ready", flush=True)
        number = start
        while True:
            run = StoredRun(f"run-{number}", "s", float(number), "1")
            history.store(run, {"paged": {"backend.kind": "vllm"}}, figures())
            number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
