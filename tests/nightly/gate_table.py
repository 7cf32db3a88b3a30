"""How often the nightly gate is wrong: ``python -m tests.nightly.gate_table``.

Nights are drawn from known noise and judged by ``harness.nightly.gate`` itself, with eight gated
cells of five repeats. Exit code 1 when a limit is missed. The tables of ``docs/nightly.md`` are

    python -m tests.nightly.gate_table --other-trials 1000 --shorter 30,14 --markdown
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from harness.nightly.gate_types import GateLimits
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
    parser.add_argument(
        "--shorter", default="", help="the same with fewer baseline nights, such as 30,14"
    )
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--markdown", action="store_true", help="tables for docs/nightly.md")
    asked = parser.parse_args(arguments)
    shorter = tuple(int(text) for text in asked.shorter.split(",") if text)
    work = [
        (w, b, asked.nights, _trials(asked, w, b), asked.seed + 10 * i, shorter)
        for i, (w, b) in enumerate((w, b) for w in WITHIN for b in BETWEEN)
    ]
    if asked.jobs > 1:
        with ProcessPoolExecutor(asked.jobs) as pool:
            rows = list(pool.map(_row, work))
    else:
        rows = [_row(item) for item in work]
    missed = [text for row in rows for text in _missed(row)]
    if asked.as_json:
        print(json.dumps({"rows": rows, "missed": missed}, indent=2))
    else:
        print(_markdown(rows) if asked.markdown else _text(rows))
    for text in missed:
        print(text, file=sys.stderr)
    return 1 if missed else 0


def _trials(asked: argparse.Namespace, within: float, between: float) -> int:
    return asked.trials if (within, between) == PROMISED else asked.other_trials


def _row(work: tuple[float, float, int, int, int, tuple[int, ...]]) -> dict[str, Any]:
    within, between, nights, trials, seed, shorter = work
    noise = Noise(within, between)
    return {
        "within_cv": within,
        "between_cv": between,
        "nights": nights,
        "false_alarms": false_alarms(noise, nights, seed),
        "trials": trials,
        **_power(noise, trials, seed + 1, GateLimits().baseline_nights),
        "shorter": [
            {
                "baseline_nights": few,
                "false_alarms": false_alarms(
                    noise, nights, seed + 2 + few, GateLimits(baseline_nights=few)
                ),
                **_power(noise, trials, seed + 3 + few, few),
            }
            for few in shorter
        ],
    }


def _power(noise: Noise, trials: int, seed: int, baseline: int) -> dict[str, float]:
    found = found_on(noise, trials, seed, baseline=baseline)
    return {
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


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    """False alarms and power of each baseline, a column each; the full baseline first."""
    full = GateLimits().baseline_nights
    names = [full, *(item["baseline_nights"] for item in rows[0]["shorter"])]
    heads = ["within a night", "between nights"]
    heads += [f"false alarms, {n} nights" for n in names]
    heads += [f"10 % found, {n} nights" for n in names]
    lines = [_cells(heads), _cells(["---:"] * len(heads))]
    for row in rows:
        levels = [row, *row["shorter"]]
        alarms = [f"{item['false_alarms']}" for item in levels]
        power = [f"{item['same_night']:.1%} / {item['three_nights']:.1%}" for item in levels]
        texts = [f"{row['within_cv']:.0%}", f"{row['between_cv']:.0%}", *alarms, *power]
        lines.append(_cells([text.replace("%", " %") for text in texts]))
    return "\n".join(lines)


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    sys.exit(main())
