"""Engines with a known knee, drawn from seeds.

Each is limited by one thing at one of the listed levels: by its KV pool, by max_num_seqs, or
by the time of a step. A draw that lies near a threshold, where the noise of a machine would
decide, is drawn again: of such a one nobody knows the answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from servers.simulated.expected import ClosedLoop, Expected, LevelTruth, expected_knee
from servers.simulated.model import EngineModel, Layout, StepCost

Limit = Literal["memory", "scheduler", "compute"]

LEVELS = (4, 8, 16)
PROMPT, OUTPUT = 96, 32
TTFT_LIMIT_S, TPOT_LIMIT_S = 0.100, 0.020
LOAD = ClosedLoop(PROMPT, OUTPUT, TTFT_LIMIT_S, TPOT_LIMIT_S)
COUNT = 24

_KINDS: tuple[tuple[Layout, Limit], ...] = (
    ("paged", "memory"),
    ("contiguous", "memory"),
    ("paged", "scheduler"),
    ("contiguous", "scheduler"),
    ("paged", "compute"),
    ("contiguous", "compute"),
)
_MAX_MODEL_LEN, _BYTES_PER_TOKEN = 256, 1024
_PLENTY = 64


@dataclass(frozen=True)
class Configuration:
    """One engine and what it says of itself."""

    seed: int
    limit: Limit
    model: EngineModel
    expected: Expected

    @property
    def name(self) -> str:
        return f"c{self.seed:02}-{self.model.layout}-{self.limit}"

    @property
    def options(self) -> tuple[str, ...]:
        """The command line of the server."""
        model, cost = self.model, self.model.cost
        return (
            *("--mode", "modelled", "--layout", model.layout),
            *("--step-base", f"{cost.base_s:.9f}"),
            *("--step-per-running", f"{cost.per_running_s:.9f}"),
            *("--step-per-context", f"{cost.per_context_s:.12f}"),
            *("--prefill-rate", f"{1 / cost.per_prefill_s:.3f}"),
            *("--max-num-seqs", str(model.max_num_seqs)),
            *("--max-num-batched-tokens", str(model.max_num_batched_tokens)),
            *("--max-model-len", str(model.max_model_len)),
            *("--num-blocks", str(model.num_blocks), "--block-size", str(model.block_size)),
            *("--kv-budget", str(model.kv_budget_bytes)),
            *("--kv-bytes-per-token", str(model.bytes_per_token)),
        )


def configuration(seed: int) -> Configuration:
    """The engine of a seed."""
    layout, limit = _KINDS[seed % len(_KINDS)]
    draw = random.Random(f"knee/{seed}")
    while True:
        model = _drawn(draw, layout, limit)
        expected = expected_knee(model, LOAD, LEVELS)
        if all(decisive(truth) for truth in expected.levels):
            return Configuration(seed, limit, model, expected)


def decisive(truth: LevelTruth) -> bool:
    """Whether a level is far from every threshold: by the time kept out, and by the limits."""
    kept_out = truth.kv_share + truth.seqs_share
    well = truth.ttft_worst_s <= 0.6 * TTFT_LIMIT_S and truth.tpot_worst_s <= 0.82 * TPOT_LIMIT_S
    clear = well if truth.slo_share >= 0.95 else truth.slo_share <= 0.8
    return clear and (kept_out >= 0.4 or (kept_out <= 0.02 and not truth.preemptions))


def _drawn(draw: random.Random, layout: Layout, limit: Limit) -> EngineModel:
    first_bad = draw.choice(LEVELS[1:] if limit == "compute" else LEVELS)
    block_size = draw.choice((8, 16, 32))
    seats = draw.randint(first_bad // 2, first_bad - 1)
    prompt_blocks = -(-PROMPT // block_size)
    whole_blocks = -(-(PROMPT + OUTPUT - 1) // block_size)
    usable = _PLENTY * whole_blocks
    if limit == "memory":
        # half the users fit to their last token, and not all prompts fit
        usable = draw.randint(whole_blocks * first_bad // 2, first_bad * prompt_blocks - 1)
    slots = seats if limit == "memory" else _PLENTY
    slot_bytes = _MAX_MODEL_LEN * _BYTES_PER_TOKEN
    return EngineModel(
        layout=layout,
        cost=_cost(draw, first_bad if limit == "compute" else None),
        max_num_seqs=seats if limit == "scheduler" else _PLENTY,
        max_model_len=_MAX_MODEL_LEN,
        num_blocks=usable + 1,
        block_size=block_size,
        kv_budget_bytes=slots * slot_bytes + draw.randrange(slot_bytes),
        bytes_per_token=_BYTES_PER_TOKEN,
    )


def _cost(draw: random.Random, too_slow_at: int | None) -> StepCost:
    """Steps of some milliseconds; beyond the limit from that level on, if any."""
    prefill_s = 1 / draw.uniform(80_000, 200_000)
    if too_slow_at is None:
        return StepCost(draw.uniform(0.004, 0.007), draw.uniform(0.0, 0.0002), 0.0, prefill_s)
    base_s = draw.uniform(0.0005, 0.002)
    # 1.4 x the limit there is 0.7 x the limit at half the level, but for the base
    each_s = draw.uniform(1.3, 1.45) * TPOT_LIMIT_S / too_slow_at
    by_context = draw.uniform(0.0, 0.5) * each_s
    return StepCost(base_s, each_s - by_context, by_context / (PROMPT + OUTPUT / 2), prefill_s)
