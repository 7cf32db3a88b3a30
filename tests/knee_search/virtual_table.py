"""The knee search against seeded servers in virtual time, beside what an oracle says of them.

    python -m tests.knee_search.virtual_table [--servers 1000] [--first 0] [--json FILE]

Prints a table and exits with 1 where a limit is missed. A thousand servers take some minutes on
one core; parts run apart (``--first``, ``--servers``) and written with ``--json`` are put
together with ``--join FILE FILE ...``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.knee_search.cases import KINDS, case
from tests.knee_search.oracle import truth_of
from tests.knee_search.virtual_search import search

#: seeds that nothing was tried out on
FAMILY = "report"
#: shares that are wanted
WITHIN, COVERED, CAUSES, NOT_INVENTED = 0.95, 0.90, 0.95, 0.98
#: of a full sweep's time
SWEEP = 0.5
NEAR, NEAR_SHARE = 1.0, 0.05


@dataclass(frozen=True)
class Row:
    """One server."""

    name: str
    kind: str
    #: None: no knee in range
    truth: int | None
    true_cause: str | None
    status: str
    last_good: float | None
    first_bad: float | None
    low: float | None
    high: float | None
    cause: str | None
    levels: int
    level_s: float
    sweep_s: float

    @property
    def within(self) -> bool:
        """Whether the knee is right within 1 or 5 %; below the first level it counts as 0."""
        if self.truth is None or self.first_bad is None:
            return False
        return abs((self.last_good or 0.0) - self.truth) <= max(NEAR, NEAR_SHARE * self.truth)

    @property
    def covered(self) -> bool:
        """Whether the interval holds the truth."""
        if self.truth is None:
            return False
        above = self.high is None or self.truth <= self.high
        return above and (self.low or 0.0) <= self.truth

    @property
    def same_cause(self) -> bool:
        return self.cause == self.true_cause

    @property
    def invented(self) -> bool:
        """Whether a knee is claimed."""
        return self.first_bad is not None


def row(family: str, number: int) -> Row:
    """Ask the oracle and the search."""
    item = case(family, number)
    truth, outcome = truth_of(item), search(item)
    found = outcome.found
    return Row(
        name=item.name,
        kind=item.kind,
        truth=truth.last_good,
        true_cause=truth.cause,
        status=found.status,
        last_good=found.last_good,
        first_bad=found.first_bad,
        low=found.low,
        high=found.high,
        cause=found.cause,
        levels=outcome.levels,
        level_s=outcome.level_s,
        sweep_s=outcome.sweep_s,
    )


@dataclass(frozen=True)
class Total:
    """Shares over rows; NaN where there are none."""

    name: str
    with_knee: int
    without: int
    within: float
    covered: float
    cause: float
    not_invented: float
    #: time of the search over that of a sweep, all servers together
    of_sweep: float
    levels: float

    @property
    def missed(self) -> list[str]:
        """Limits that are missed."""
        limits = {
            "within": (self.within, WITHIN),
            "covered": (self.covered, COVERED),
            "cause": (self.cause, CAUSES),
            "not_invented": (self.not_invented, NOT_INVENTED),
        }
        missed = [name for name, (share, least) in limits.items() if share < least]
        return [*missed, *(["of_sweep"] if self.of_sweep > SWEEP else [])]


def total(name: str, rows: Sequence[Row]) -> Total:
    """Sum up."""
    knees = [item for item in rows if item.truth is not None]
    none = [item for item in rows if item.truth is None]
    return Total(
        name=name,
        with_knee=len(knees),
        without=len(none),
        within=_share([item.within for item in knees]),
        covered=_share([item.covered for item in knees]),
        cause=_share([item.same_cause for item in knees]),
        not_invented=_share([not item.invented for item in none]),
        of_sweep=sum(item.level_s for item in rows) / (sum(item.sweep_s for item in rows) or 1.0),
        levels=sum(item.levels for item in rows) / max(len(rows), 1),
    )


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else math.nan


def totals(rows: Sequence[Row]) -> list[Total]:
    """By kind of limit and by size of the knee, and all."""
    parts = [total(kind, [item for item in rows if item.kind == kind]) for kind in KINDS]
    for low, high in ((1, 8), (8, 32), (32, 100), (100, 10_000)):
        own = [item for item in rows if item.truth is not None and low <= item.truth < high]
        parts.append(total(f"knees {low} to {high - 1}", own))
    return [*parts, total("all", rows)]


def table(parts: Sequence[Total]) -> str:
    """Plain text."""
    heads = ("knees", "none", "within", "covered", "cause", "not invented", "of sweep", "levels")
    lines = [f"{'servers':<18}" + "".join(f"{head:>14}" for head in heads)]
    for item in parts:
        shares = (item.within, item.covered, item.cause, item.not_invented, item.of_sweep)
        text = [str(item.with_knee), str(item.without), *map(_percent, shares)]
        cells = "".join(f"{cell:>14}" for cell in (*text, f"{item.levels:.1f}"))
        lines.append(f"{item.name:<18}{cells}")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share * 100:.1f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or join, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--servers", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default 0)")
    parser.add_argument("--family", default=FAMILY, help="of seeds (default report)")
    parser.add_argument("--json", type=Path, help="write the rows and totals here")
    parser.add_argument("--join", type=Path, nargs="+", help="read rows from such files instead")
    parser.add_argument("--wrong", action="store_true", help="print the rows that are wrong")
    asked = parser.parse_args(arguments)
    if asked.servers < 1 or asked.first < 0:
        parser.error("--servers must be at least 1 and --first at least 0")
    rows = _joined(asked.join) if asked.join else _measured(asked)
    parts = totals(rows)
    print(table(parts))
    if asked.wrong:
        for item in rows:
            right = item.within and item.covered and item.same_cause
            if not right and (item.truth is not None or item.invented):
                print(item)
    if asked.json:
        body = {"totals": [asdict(p) for p in parts], "rows": [asdict(item) for item in rows]}
        asked.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    missed = parts[-1].missed
    print(f"missed: {', '.join(missed)}" if missed else "every limit is kept")
    return 1 if missed else 0


def _measured(asked: argparse.Namespace) -> list[Row]:
    numbers = range(asked.first, asked.first + asked.servers)
    return [row(asked.family, number) for number in numbers]


def _joined(paths: Sequence[Path]) -> list[Row]:
    read = [json.loads(path.read_text(encoding="utf-8"))["rows"] for path in paths]
    return [Row(**item) for part in read for item in part]


if __name__ == "__main__":
    sys.exit(main())
