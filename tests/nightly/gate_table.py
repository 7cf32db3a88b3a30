"""How often the nightly gate is wrong: ``python -m tests.nightly.gate_table``.

Nights are drawn from known noise and judged by ``harness.nightly.gate`` itself, with eight gated
cells of five repeats. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.nightly.simulated import Noise, false_alarms, found_on

WITHIN = (0.03, 0.05, 0.08, 0.12)
BETWEEN = (0.01, 0.03, 0.05)
#: of 2,000 nights without change
MOST_ALARMS = 30 / 2000
#: the row whose power is promised
PROMISED = (0.05, 0.01)
SAME_NIGHT, THREE_NIGHTS = 0.75, 0.98


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 when all limits hold, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.gate_table", description=__doc__)
    parser.add_argument("--nights", type=int, default=2000, help="without change, per row")
    parser.add_argument("--trials", type=int, default=2000, help="histories of the promised row")
    parser.add_argument("--other-trials", type=int, default=300, help="histories of other rows")
    parser.add_argument("--seed", type=int, default=9300, help="the gate was designed with others")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true", dest="as_json")
    asked = parser.parse_args(arguments)
    work = [
        (w, b, asked.nights, _trials(asked, w, b), asked.seed + 10 * i)
        for i, (w, b) in enumerate((w, b) for w in WITHIN for b in BETWEEN)
    ]
    if asked.jobs > 1:
        with ProcessPoolExecutor(asked.jobs) as pool:
            rows = list(pool.map(_row, work))
    else:
        rows = [_row(item) for item in work]
    missed = [text for row in rows for text in _missed(row)]
    print(json.dumps({"rows": rows, "missed": missed}, indent=2) if asked.as_json else _text(rows))
    for text in missed:
        print(text, file=sys.stderr)
    return 1 if missed else 0


def _trials(asked: argparse.Namespace, within: float, between: float) -> int:
    return asked.trials if (within, between) == PROMISED else asked.other_trials


def _row(work: tuple[float, float, int, int, int]) -> dict[str, Any]:
    within, between, nights, trials, seed = work
    noise = Noise(within, between)
    found = found_on(noise, trials, seed + 1)
    return {
        "within_cv": within,
        "between_cv": between,
        "nights": nights,
        "false_alarms": false_alarms(noise, nights, seed),
        "trials": trials,
        "same_night": sum(day == 1 for day in found) / trials,
        "three_nights": sum(day is not None for day in found) / trials,
    }


def _missed(row: dict[str, Any]) -> list[str]:
    name = f"within {row['within_cv']:.0%}, between {row['between_cv']:.0%}"
    texts = []
    if row["false_alarms"] > MOST_ALARMS * row["nights"]:
        texts.append(f"{name}: {row['false_alarms']} false alarms in {row['nights']} nights")
    promised = (row["within_cv"], row["between_cv"]) == PROMISED
    if promised and row["same_night"] < SAME_NIGHT:
        texts.append(f"{name}: found the same night in {row['same_night']:.1%} only")
    if promised and row["three_nights"] < THREE_NIGHTS:
        texts.append(f"{name}: found within three nights in {row['three_nights']:.1%} only")
    return texts


def _text(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["within  between  false alarms     10 % found: same night  within three"]
    for row in rows:
        alarms = f"{row['false_alarms']}/{row['nights']}"
        lines.append(
            f"{row['within_cv']:6.0%}  {row['between_cv']:7.0%}  {alarms:>12}"
            f"{row['same_night']:>28.1%}  {row['three_nights']:>12.1%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
