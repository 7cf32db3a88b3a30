"""``docs/nightly.md`` says what the code does."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from harness.nightly.gate import threshold, worse_change
from harness.nightly.gate_types import GateLimits, VerdictName
from harness.nightly.metrics import METRICS
from harness.nightly.quantiles import normal_quantile
from harness.nightly.spread import Spread
from harness.nightly.suite import Compose, Gated, Gates, Keep, Run, Suite
from tests.nightly.gate_table import (
    BETWEEN,
    MOST_ALARMS,
    PROMISED,
    SAME_NIGHT,
    THREE_NIGHTS,
    WITHIN,
)

DOCS = Path(__file__).parents[2] / "docs" / "nightly.md"


def table(head: str) -> list[list[str]]:
    """Rows of the table whose head begins so, without head and rule."""
    lines = DOCS.read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(f"| {head}")]
    assert len(starts) == 1, head
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[starts[0] + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names(struct: type[msgspec.Struct], prefix: str = "") -> list[str]:
    return [prefix + field.name for field in msgspec.structs.fields(struct)]


def test_every_key_of_a_suite_is_explained() -> None:
    rows = table("key |")
    explained = [name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])]
    wanted = [name for name in names(Suite) if name not in {"gate", "keep", "compose"}]
    wanted += names(Run, "run.") + names(Gates, "gate.") + names(Keep, "keep.")
    wanted += names(Compose, "compose.")
    assert sorted(explained) == sorted(wanted)
    primary = next(row for row in rows if row[0] == "`gate.primary`")
    assert set(names(Gated)) <= set(re.findall(r"\w+", primary[1]))


def test_defaults_are_those_of_the_code() -> None:
    said = {row[0]: row[2] for row in table("key |")}
    for name in ("false_alarm_rate", "baseline_nights", "min_nights", "max_gated"):
        default = next(f.default for f in msgspec.structs.fields(Gates) if f.name == name)
        assert said[f"`gate.{name}`"].endswith(f"({default:g})")
        assert default == getattr(GateLimits(), name)
    assert said["`keep.days`, `keep.runs`"].endswith(f"({Keep().days}, {Keep().runs})")


def test_every_verdict_and_exit_code_is_explained() -> None:
    assert {row[0].strip("`") for row in table("verdict |")} == set(get_args(VerdictName))
    assert [row[0] for row in table("exit code |")] == ["0", "1", "2", "3"]


def test_floors_are_those_of_the_metrics() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("metric |")}
    assert list(rows) == list(METRICS)
    for name, (better, relative, absolute, requests) in rows.items():
        metric = METRICS[name]
        assert better == metric.better
        assert relative == (
            f"{metric.relative_floor:.0%}".replace("%", " %") if not metric.is_share else "-"
        )
        factor = {"ms": 1e-3, "point": 1e-2}.get(absolute.split()[1], 1.0)
        assert float(absolute.split()[0]) * factor == pytest.approx(metric.absolute_floor)
        assert requests == (str(metric.min_requests) if metric.min_requests else "-")


def test_what_a_history_lets_see_is_recomputed() -> None:
    limits = GateLimits()
    tail = limits.false_alarm_rate * limits.night_share / limits.max_gated
    for row in table("spread |"):
        sd = float(row[0].split()[0]) / 100
        for nights, said in zip((5, 14, 30, 90), row[1:], strict=True):
            spread = Spread(math.log(0.4), sd, nights, nights - 1.0)
            needed = threshold(spread, METRICS["ttft_p50_s"], tail)
            seen = needed + normal_quantile(0.75) * sd * math.sqrt(1 + 1 / nights)
            assert said == f"{worse_change(METRICS['ttft_p50_s'], seen) * 100:.0f} %"


def test_the_published_figures_hold_what_is_promised() -> None:
    # each is a run of tests.nightly.gate_table; it fails itself when it misses a limit
    rows = table("within a night |")
    assert [(row[0], row[1]) for row in rows] == [
        (f"{w * 100:.0f} %", f"{b * 100:.0f} %") for w in WITHIN for b in BETWEEN
    ]
    for row in rows:
        assert all(int(text) <= MOST_ALARMS * 2000 for text in row[2:5])
    promised = rows[[(w, b) for w in WITHIN for b in BETWEEN].index(PROMISED)]
    same, three = (float(text.split()[0]) / 100 for text in promised[5].split("/"))
    assert same >= SAME_NIGHT and three >= THREE_NIGHTS
