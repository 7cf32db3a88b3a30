"""Simulated nights with known noise, judged by the gate itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.nightly.gate import judge
from harness.nightly.gate_types import GateLimits, Reading, Series, Verdict
from harness.nightly.metrics import METRICS

CELLS = 8
REPEATS = 5
TTFT = METRICS["ttft_p50_s"]
TRUTH_S = 0.4


@dataclass(frozen=True)
class Noise:
    """Coefficients of variation, the same for all cells."""

    within: float
    between: float


def night(
    draw: np.random.Generator, noise: Noise, name: str, factors: np.ndarray | None = None
) -> list[Reading]:
    """One reading per cell; ``factors`` (cells) multiply the true value."""
    level = TRUTH_S * (1.0 if factors is None else factors) * np.ones(CELLS)
    level = level * np.exp(noise.between * draw.standard_normal(CELLS))
    spread = np.exp(noise.within * draw.standard_normal((CELLS, REPEATS)))
    return [Reading(name, tuple(row), 500) for row in (level[:, None] * spread).tolist()]


def judged(
    tonight: list[Reading], past: list[list[Reading]], limits: GateLimits
) -> tuple[Verdict, ...]:
    return judge(
        [
            Series(f"cell {i}", TTFT, tonight[i], tuple(past[i][-limits.baseline_nights :]), True)
            for i in range(CELLS)
        ],
        limits,
    )


def kept(past: list[list[Reading]], tonight: list[Reading], said: tuple[Verdict, ...]) -> None:
    """Add tonight to the baselines, as the history does."""
    for i, verdict in enumerate(said):
        if not verdict.kept_out:
            past[i].append(tonight[i])


def seeded(draw: np.random.Generator, noise: Noise, nights: int) -> list[list[Reading]]:
    """Histories (cells) of so many nights."""
    rows = [night(draw, noise, f"b{i}") for i in range(nights)]
    return [[row[i] for row in rows] for i in range(CELLS)]


def false_alarms(noise: Noise, nights: int, seed: int, limits: GateLimits | None = None) -> int:
    """Nights with an alarm among ``nights`` in a row without change."""
    limits = limits or GateLimits()
    draw = np.random.default_rng(seed)
    past = seeded(draw, noise, limits.baseline_nights)
    alarms = 0
    for i in range(nights):
        tonight = night(draw, noise, f"n{i}")
        said = judged(tonight, past, limits)
        alarms += any(verdict.alarm for verdict in said)
        kept(past, tonight, said)
    return alarms


def found_on(
    noise: Noise, trials: int, seed: int, slower: float = 1.1, baseline: int = 90
) -> list[int | None]:
    """For each trial the night (1, 2, 3) on which one slower cell of eight was found, or None."""
    limits = GateLimits()
    draw = np.random.default_rng(seed)
    factors = np.ones(CELLS)
    factors[0] = slower
    found: list[int | None] = []
    for _ in range(trials):
        past = seeded(draw, noise, baseline)
        found.append(_first_alarm(draw, noise, past, factors, limits))
    return found


def _first_alarm(
    draw: np.random.Generator,
    noise: Noise,
    past: list[list[Reading]],
    factors: np.ndarray,
    limits: GateLimits,
) -> int | None:
    for i in range(3):
        tonight = night(draw, noise, f"n{i}", factors)
        said = judged(tonight, past, limits)
        if said[0].alarm:
            return i + 1
        kept(past, tonight, said)
    return None
