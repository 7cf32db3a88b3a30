"""The options of a matrix and of a soak, validated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from harness.errors import OptionError, UsageError
from harness.load.matrix_options import RUN, SKIP
from harness.load.numbers import MAX_REPEATS, MAX_TOKENS, decimal, digits, ratio, seconds
from harness.plan.levels import parse_levels
from harness.sizes import parse_size
from harness.workload import MatrixLimits, Soak

#: lengths in one list
_MAX_LENGTHS = 100
_CYCLES, _SHORTEST_CYCLE_S, _LONGEST_CYCLE_S = 20, 20.0, 600.0
#: a sample lies in its last half even where one comes late
_SHORTEST_REST_S = 3.0
#: a longer pause would pass for users that do not come
_LONGEST_REST_S = 30.0
#: A trend needs points: one per cycle.
_LEAST_CYCLES = 6


@dataclass(frozen=True)
class MatrixAsk:
    """What is asked of a matrix beside its workload."""

    limits: MatrixLimits
    plan_only: bool


def read_shapes(text: Mapping[str, str]) -> tuple[tuple[int, int], ...]:
    """(prompt, output) tokens of all requests, short prompts first; raises OptionError."""
    if text["endpoint"] != "completions":
        raise OptionError("--endpoint", text["endpoint"], "completions: lengths are in tokens")
    prompts = parse_lengths(text["prompt_tokens"], "--prompt-tokens")
    outputs = parse_lengths(text["output_tokens"], "--output-tokens")
    return tuple((prompt, output) for prompt in prompts for output in outputs)


def parse_lengths(text: str, option: str) -> tuple[int, ...]:
    """Read ``128,512``: whole numbers, rising; raises OptionError."""
    numbers = [digits(part.strip()) for part in text.split(",")]
    known = [number for number in numbers if number is not None and 1 <= number <= MAX_TOKENS]
    if len(known) < len(numbers) or not all(a < b for a, b in pairwise(known)):
        raise OptionError(option, text, "rising whole numbers of tokens such as 128,512")
    if len(known) > _MAX_LENGTHS:
        raise OptionError(option, text, f"at most {_MAX_LENGTHS} lengths")
    return tuple(known)


def read_matrix(text: Mapping[str, str], *, plan_only: bool) -> MatrixAsk:
    """Limits of a matrix; raises OptionError."""
    beyond, minutes = text["beyond_kv_budget"], text["budget_minutes"]
    if beyond not in (RUN, SKIP):
        raise OptionError("--beyond-kv-budget", beyond, f"{RUN} or {SKIP}")
    budget = decimal(minutes) if minutes else None
    if minutes and not budget:
        raise OptionError("--budget-minutes", minutes, "minutes, more than 0, such as 90")
    limits = MatrixLimits(
        budget_s=None if budget is None else budget * 60, skip_beyond_budget=beyond == SKIP
    )
    return MatrixAsk(limits=limits, plan_only=plan_only)


@dataclass(frozen=True)
class SoakAsk:
    """A soak as a list of equal stretches."""

    level: float
    cycles: int
    cycle_s: float
    soak: Soak


def read_soak(text: Mapping[str, str], run_time_s: float | None) -> SoakAsk:
    """Stretches, pauses and limits; raises UsageError, one clear line."""
    if not run_time_s:
        raise UsageError("--run-time: none given; expected how long to soak, such as 10m or 8h")
    levels = parse_levels(text["levels"])
    if len(levels) != 1:
        raise OptionError("--levels", text["levels"], "one level, such as 8")
    rest_s = seconds("--rest-seconds", text["rest_seconds"])
    if not _SHORTEST_REST_S <= rest_s <= _LONGEST_REST_S:
        expected = (
            f"seconds, {_SHORTEST_REST_S:g} to {_LONGEST_REST_S:g}: a server has 1.5 s to settle, "
            "and is sampled once a second"
        )
        raise OptionError("--rest-seconds", text["rest_seconds"], expected)
    cycle_s = _cycle_s(text["cycle_seconds"], run_time_s)
    cycles = math.floor(run_time_s / (cycle_s + rest_s))
    if cycles < _LEAST_CYCLES or cycles > MAX_REPEATS:
        raise OptionError(
            "--cycle-seconds",
            text["cycle_seconds"] or f"{cycle_s:g}",
            f"seconds that, with --rest-seconds {rest_s:g}, divide --run-time {run_time_s:g} s "
            f"into {_LEAST_CYCLES} to {MAX_REPEATS} stretches",
        )
    return SoakAsk(
        level=levels[0],
        cycles=cycles,
        cycle_s=run_time_s / cycles - rest_s,
        soak=Soak(
            cancel_share=_cancel_share(text["cancel_share"]),
            rest_s=rest_s,
            max_memory_growth_bytes=float(
                parse_size(text["max_memory_growth"], "--max-memory-growth")
            ),
            max_latency_growth=_growth(text["max_latency_growth"]),
        ),
    )


def _cycle_s(text: str, run_time_s: float) -> float:
    if text:
        return seconds("--cycle-seconds", text)
    return min(max(run_time_s / _CYCLES, _SHORTEST_CYCLE_S), _LONGEST_CYCLE_S)


def _cancel_share(text: str) -> float:
    share = ratio("--cancel-share", text)
    if share > 0.9:
        raise OptionError("--cancel-share", text, "0.9 at most: some must end to be measured")
    return share


def _growth(text: str) -> float | None:
    if not text:
        return None
    growth = decimal(text)
    if not growth:
        raise OptionError("--max-latency-growth", text, "a share above 0, such as 0.1 for 10 %")
    return growth
