"""Write the dashboards: from the code in ``dashboards/boards`` to the JSON that Grafana reads.

    python -m dashboards.build            write dashboards/grafana/json/*.json
    python -m dashboards.build --check    write nothing; exit code 1 when a file differs

The JSON is committed, so that nobody needs Grafana's library to run the stack.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.boards import capacity, nightly, run
from dashboards.boards.shell import built

FOLDER = Path(__file__).parent / "grafana" / "json"


def texts() -> Mapping[str, str]:
    """The name of each file and its content; the same at every call."""
    encoder = JSONEncoder(indent=2, sort_keys=True, ensure_ascii=False)
    boards = (run.board(), capacity.board(), nightly.board())
    return {f"{board.name}.json": encoder.encode(built(board)) + "\n" for board in boards}


def differing(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Files that are missing, of other content, or there without a dashboard of that name."""
    names = set(wanted) | {path.name for path in folder.glob("*.json")}
    return sorted(name for name in names if _read(folder / name) != wanted.get(name))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which files differ")
    options = parser.parse_args(arguments)
    wanted = texts()
    changed = differing(folder, wanted)
    if options.check:
        for name in changed:
            print(f"{name} is not what dashboards/boards makes: run python -m dashboards.build")
        return 1 if changed else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        else:
            (folder / name).unlink()
        print(f"{name} written" if name in wanted else f"{name} removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
