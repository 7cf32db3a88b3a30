"""Old run directories of a suite's nights, removed by age and by count.

::

    <results>/nightly/<suite>-<date>-<time>/
        runs/<run id>/      run directories: these are pruned
        logs/               what each load said
        ...                 the night's reports, which stay

Only what lies there is touched: no run that somebody made, no night of another suite, not
tonight's, and nothing that a symbolic link leads to.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.nightly.suite import Keep

RUNS = "runs"
_STAMP = "%Y%m%d-%H%M%S"
_NIGHT = re.compile(r"(?P<suite>.+)-(?P<stamp>\d{8}-\d{6})(?:-\d+)?")
_DAY_S = 86_400.0


@dataclass(frozen=True)
class OldRun:
    """A run directory of an earlier night, and when that night began."""

    path: Path
    at_wall_s: float


def night_name(suite: str, at_wall_s: float) -> str:
    """The name of a night: its suite and its start in UTC."""
    return f"{suite}-{datetime.fromtimestamp(at_wall_s, UTC).strftime(_STAMP)}"


def prune(nights: Path, suite: str, tonight: str, at_wall_s: float, keep: Keep) -> list[str]:
    """Remove what is beyond ``keep``; gives the names of what was removed.

    Tonight's runs count, and stay however many they are. What cannot be removed is left.
    """
    old = sorted(_old_runs(nights, suite, tonight), key=lambda item: item.at_wall_s, reverse=True)
    own = sum(1 for _ in _runs_of(nights / tonight))
    removed = []
    for place, item in enumerate(old, start=own + 1):
        too_old = at_wall_s - item.at_wall_s > keep.days * _DAY_S
        if (too_old or place > keep.runs) and _removed(item.path):
            removed.append(item.path.name)
    return removed


def _old_runs(nights: Path, suite: str, tonight: str) -> Iterator[OldRun]:
    if nights.is_symlink() or not nights.is_dir():
        return
    for night in nights.iterdir():
        at_wall_s = _began(night.name, suite)
        if at_wall_s is not None and night.name != tonight:
            for path in _runs_of(night):
                yield OldRun(path, at_wall_s)


def _runs_of(night: Path) -> Iterator[Path]:
    runs = night / RUNS
    if any(path.is_symlink() or not path.is_dir() for path in (night, runs)):
        return
    for path in runs.iterdir():
        if not path.is_symlink() and (path / "manifest.json").is_file():
            yield path


def _began(name: str, suite: str) -> float | None:
    """When a night of that suite began; None for any other folder."""
    match = _NIGHT.fullmatch(name)
    if match is None or match["suite"] != suite:
        return None
    try:
        return datetime.strptime(match["stamp"], _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _removed(path: Path) -> bool:
    """Remove a run directory and, when it was the last, the folder around it."""
    # the manifest goes last: what is cut short here is still known as a run
    try:
        for part in path.iterdir():
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part)
            elif part.name != "manifest.json":
                part.unlink()
        shutil.rmtree(path)
    except OSError:
        return False
    if not any(path.parent.iterdir()):
        path.parent.rmdir()
    return True
