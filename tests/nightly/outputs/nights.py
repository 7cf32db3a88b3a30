"""Nights as the job would make them: simulated readings, judged by the gate itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.nightly.gate import judge
from harness.nightly.gate_types import GateLimits, Reading, Series, VerdictName
from harness.nightly.metrics import METRICS
from harness.nightly.night_types import Judged, Night, NightEvent, NightRun
from harness.nightly.sight import change_point, visible_regression

LIMITS = GateLimits()
#: 2026-11-30 03:17:00 UTC
AT_WALL_S = 1_796_008_620.0
TONIGHT = "20261130-031700"
HOSTILE = '<script>alert(1)</script>|a`b_*\n"q"\\\'&amp;\x1b[31m\u202e\ud800 ünï]]>'
#: typical values in the metric's own unit
TRUTH = {
    **{f"ttft_p{p}_s": 0.4 + p / 1000 for p in (50, 95, 99)},
    **{f"tpot_p{p}_s": 0.028 + p / 100_000 for p in (50, 95, 99)},
    **{f"e2e_p{p}_s": 2.0 + p / 100 for p in (50, 95, 99)},
    "output_tokens_per_s": 350.0,
    "goodput_rps": 5.5,
    "memory_knee": 18.0,
    "kv_bytes_per_token": 1088.0,
    "failure_rate": 0.01,
}


@dataclass(frozen=True)
class Asked:
    """One series to make; ``tonight`` is the factor of tonight's repeats, None: not measured."""

    metric: str = "ttft_p95_s"
    backend: str = "paged"
    level: int | None = 16
    gated: bool = True
    nights: int = 90
    tonight: float | None = 1.0
    within: float = 0.03
    run: str = "short"
    #: nights at the end that are like tonight
    like_tonight: int = 0


#: What gives each verdict.
ASKED: dict[VerdictName, Asked] = {
    "ok": Asked(),
    "regressed": Asked(tonight=1.25, backend="contiguous"),
    "improved": Asked("output_tokens_per_s", tonight=1.2),
    "insufficient samples": Asked("goodput_rps", tonight=None),
    "no comparable baseline": Asked("tpot_p95_s", nights=3),
    "unstable": Asked("e2e_p50_s", within=-0.6),
}


def series(asked: Asked, index: int = 0) -> Series:
    """Nights of 5 repeats around the truth; a negative ``within`` is tonight's alone."""
    draw = np.random.default_rng(index)
    truth = TRUTH[asked.metric]
    usual = asked.within if asked.within > 0 else 0.02
    sizes = np.full(asked.nights, truth)
    if asked.like_tonight and asked.tonight is not None:
        sizes[-asked.like_tonight :] *= asked.tonight
    rows = sizes[:, None] * np.exp(usual * draw.standard_normal((asked.nights, 5)))
    past = [Reading(f"n{i:03d}", tuple(row), 600) for i, row in enumerate(rows.tolist())]
    tonight = None
    if asked.tonight is not None:
        scatter = np.exp(abs(asked.within) * np.array([-1.0, -0.5, 0.0, 0.5, 1.0]))
        tonight = Reading(TONIGHT, tuple((truth * asked.tonight * scatter).tolist()), 600)
    where = f" c{asked.level}" if asked.level is not None else ""
    return Series(
        f"{asked.run}: {asked.backend} 512+64{where}",
        METRICS[asked.metric],
        tonight,
        tuple(past),
        asked.gated,
        other_nights=4 if asked.nights < LIMITS.min_nights else 0,
    )


def judged(asked: Sequence[Asked], model: str = "tiny") -> tuple[Judged, ...]:
    made = [series(each, index) for index, each in enumerate(asked)]
    return tuple(
        Judged(
            run=each.run,
            backend=each.backend,
            model=model,
            level=each.level,
            series=item,
            verdict=verdict,
            sight=visible_regression(item, LIMITS),
            since=change_point([*item.baseline, *([item.tonight] if item.tonight else [])],
                               item.metric),
        )
        for each, item, verdict in zip(asked, made, judge(made, LIMITS), strict=True)
    )  # fmt: skip


def night(
    asked: Sequence[Asked] = tuple(ASKED.values()), exit_code: int = 1, **others: object
) -> Night:
    """A night of two repeats of one run, an hour long."""
    made = Night(
        night_id=TONIGHT,
        suite="gpu",
        at_wall_s=AT_WALL_S,
        seconds=3600.0,
        kvknee_version="1.2.3",
        machine="1 x NVIDIA H200",
        runs=tuple(NightRun("short", i, 0, 1200.5, f"short-{i}") for i in range(2)),
        judged=judged(asked),
        events=(),
        setup_changes=(),
        exit_code=exit_code,
        limits=LIMITS,
    )
    return replace(made, **others)  # type: ignore[arg-type]


def whole_night() -> Night:
    """Every verdict, gated and not, with events, another setup, and a run that failed."""
    gated = list(ASKED.values())
    others = [replace(each, gated=False, level=32) for each in gated]
    more = [Asked(name, gated=False, level=8, nights=90) for name in METRICS]
    too_good = Asked("memory_knee", level=None, tonight=1.6, within=0.001)
    return night(
        [*gated, too_good, *others, *more],
        runs=(
            NightRun("short", 0, 0, 1200.5, "short-0"),
            NightRun("short", 1, 3, 17.25, None),
            NightRun("long", 0, 1, 900.0, "long-0"),
        ),
        events=(
            NightEvent(AT_WALL_S + 60, "server restarted", "paged died (signal 9)"),
            NightEvent(AT_WALL_S + 90, "run failed", "short: the server did not come back"),
            NightEvent(AT_WALL_S + 3500, "pruned", "2 run directories older than 90 days"),
        ),
        setup_changes=("short contiguous: backend.engine_version 5.23 (now 5.24)",),
    )


def hostile_night() -> Night:
    """A night in which every text of others is hostile."""
    items = tuple(
        replace(
            item,
            run=HOSTILE,
            backend=HOSTILE,
            model=HOSTILE,
            series=replace(
                item.series,
                cell=HOSTILE,
                baseline=tuple(
                    replace(past, night=f"{HOSTILE}{past.night}") for past in item.series.baseline
                ),
            ),
            verdict=replace(item.verdict, cell=HOSTILE, reason=HOSTILE),
        )
        for item in judged([ASKED["regressed"], ASKED["no comparable baseline"]])
    )  # fmt: skip
    return night(
        judged=items,
        night_id=HOSTILE,
        suite=HOSTILE,
        kvknee_version=HOSTILE,
        machine=HOSTILE,
        runs=(NightRun(HOSTILE, 0, 1, 5.0, HOSTILE),),
        events=(NightEvent(AT_WALL_S, "cell failed", HOSTILE),),
        setup_changes=(HOSTILE,),
    )


def interrupted_night() -> Night:
    """Ended before anything was judged."""
    return night(
        (),
        exit_code=3,
        seconds=12.0,
        runs=(),
        events=(NightEvent(AT_WALL_S + 12, "interrupted", "SIGTERM after 12 s"),),
    )


def refused_night() -> Night:
    """Nothing ran, because the machine was not idle."""
    text = "the machine is not idle: load 7.2 on 8 cores; end what runs on it"
    events = (NightEvent(AT_WALL_S, "preflight", text),)
    return night((), exit_code=2, seconds=0.5, runs=(), events=events)


def first_nights() -> Night:
    """Two comparable nights are stored; five are needed."""
    asked = [Asked(nights=2), Asked("tpot_p95_s", nights=2)]
    return night(asked, exit_code=2)


def long_night() -> Night:
    """Eight gated figures with 400 nights behind each."""
    names = [name for name in METRICS if name not in ("memory_knee", "failure_rate")][:8]
    return night([Asked(name, nights=400) for name in names], exit_code=0)


NIGHTS = {
    "whole": whole_night,
    "hostile": hostile_night,
    "interrupted": interrupted_night,
    "refused": refused_night,
    "first": first_nights,
    "long": long_night,
    "empty": lambda: night((), exit_code=0),
}
