"""Servers drawn from seeds, each with at most one limit in range, and the load they get.

Four in five have a knee below the highest level that may be asked; of the others it lies beyond
(or nowhere). Which level the knee is at is for the oracle to say: a draw only aims at a size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from harness.plan.search_types import SearchGoal
from servers.simulated.model import EngineModel, StepCost

Kind = Literal["paged", "contiguous", "scheduler", "compute"]
KINDS: tuple[Kind, ...] = ("paged", "contiguous", "scheduler", "compute")
#: of so many servers one has no knee in range
ONE_WITHOUT = 5
_PLENTY = 10_000
_BYTES_PER_TOKEN = 64
THINK_S = 0.001


@dataclass(frozen=True)
class Law:
    """What of a server and its load is random; both the server and the oracle draw from it."""

    prompt_tokens: int
    #: lengths are uniform in mean x (1 -+ spread)
    output_tokens: int
    spread: float
    #: standard deviation of the logarithm of a step's duration over the model's
    step_noise: float
    #: users begin spread over this time
    ramp_s: float

    def lengths(self, draw: random.Random) -> Iterator[int]:
        """Output lengths, one per request."""
        low = max(2, round(self.output_tokens * (1 - self.spread)))
        high = max(low, round(self.output_tokens * (1 + self.spread)))
        while True:
            yield draw.randint(low, high)

    @property
    def longest(self) -> int:
        """The longest output."""
        return max(2, round(self.output_tokens * (1 + self.spread)))

    def step_factor(self, draw: random.Random) -> float:
        """By which a step takes longer than the model says."""
        return math.exp(draw.gauss(0.0, self.step_noise)) if self.step_noise else 1.0


@dataclass(frozen=True)
class Case:
    """One server, what is asked of it, and how it is looked at."""

    name: str
    kind: Kind
    goal: SearchGoal
    model: EngineModel
    law: Law
    #: the limits of the SLO; None asks nothing
    ttft_limit_s: float | None
    tpot_limit_s: float | None
    #: the size that the draw aimed at
    aim: int
    max_level: int
    #: where the search begins; None: it has no prediction
    start: int | None
    #: whether the server states its max_num_seqs
    states_seats: bool
    scrape_s: float
    max_level_s: float


def case(family: str, number: int) -> Case:
    """The server of a number; ``family`` keeps the seeds of development and report apart."""
    draw = random.Random(f"virtual/{family}/{number}")
    without = number % ONE_WITHOUT == ONE_WITHOUT - 1
    kind = KINDS[(number // ONE_WITHOUT if without else number % ONE_WITHOUT) % len(KINDS)]
    aim = round(math.exp(draw.uniform(math.log(2), math.log(220))))
    top = round(aim * draw.uniform(1.6, 6.0)) + 2
    if without:
        top = max(2, round(aim * draw.uniform(0.3, 0.8)))
        aim = max(aim, top + 2)
    law = Law(
        prompt_tokens=draw.randint(16, 192),
        output_tokens=draw.randint(12, 32),
        spread=draw.choice((0.0, draw.uniform(0.05, 0.5), draw.uniform(0.05, 0.5))),
        step_noise=draw.choice((0.0, 0.03, 0.1)),
        ramp_s=0.0,
    )
    model, tpot_s = _model(draw, kind, aim, law)
    step_s = model.cost.seconds(aim, 0, law.prompt_tokens * aim // law.output_tokens)
    request_s = law.output_tokens * step_s
    return Case(
        name=f"{family}-{number:04}-{kind}{'-none' if without else ''}",
        kind=kind,
        goal="slo" if kind == "compute" else "capacity",
        model=model,
        law=replace(law, ramp_s=draw.choice((0.0, request_s))),
        ttft_limit_s=5.0 * request_s if kind == "compute" else None,
        tpot_limit_s=tpot_s,
        aim=aim,
        max_level=top,
        start=_start(draw, kind, aim, top),
        states_seats=draw.random() < 0.7,
        scrape_s=request_s * draw.uniform(0.1, 0.3),
        max_level_s=30.0 * request_s,
    )


def _start(draw: random.Random, kind: Kind, aim: int, top: int) -> int | None:
    """Mostly near, sometimes wrong by up to a factor of two, sometimes none."""
    if kind == "compute" or draw.random() < 0.2:
        return None
    wrong = draw.choice((1.0, draw.uniform(0.9, 1.1), draw.uniform(0.5, 2.0)))
    return min(top, max(1, round(aim * wrong)))


def _model(draw: random.Random, kind: Kind, aim: int, law: Law) -> tuple[EngineModel, float | None]:
    """The engine, and the limit of the time per output token where that is its knee."""
    block_size = draw.choice((8, 16, 32))
    longest = -(-(law.prompt_tokens + law.longest) // block_size)
    blocks = longest * _PLENTY
    if kind == "paged":
        typical = law.prompt_tokens + draw.uniform(0.6, 1.0) * law.output_tokens
        blocks = max(longest, round(aim * typical / block_size))
    slot_tokens = law.prompt_tokens + law.longest + draw.randint(0, 100)
    slots = aim if kind == "contiguous" else _PLENTY
    cost, tpot_s = _cost(draw, kind, aim, law)
    slot_bytes = slot_tokens * _BYTES_PER_TOKEN
    contiguous = kind == "contiguous" or (kind != "paged" and draw.random() < 0.4)
    model = EngineModel(
        layout="contiguous" if contiguous else "paged",
        cost=cost,
        max_num_seqs=aim if kind == "scheduler" else _PLENTY,
        max_num_batched_tokens=draw.choice((1024, 2048, 8192)),
        max_model_len=slot_tokens,
        num_blocks=blocks + 1,
        block_size=block_size,
        kv_budget_bytes=slots * slot_bytes + draw.randrange(slot_bytes),
        bytes_per_token=_BYTES_PER_TOKEN,
    )
    return model, tpot_s


def _cost(draw: random.Random, kind: Kind, aim: int, law: Law) -> tuple[StepCost, float | None]:
    base_s = draw.uniform(0.01, 0.03)
    prefill_s = base_s / draw.uniform(2000, 8000)
    if kind != "compute":
        return StepCost(base_s, base_s * draw.uniform(0.0, 0.01), 0.0, prefill_s), None
    # steps take two to six times as long at the knee as with one request
    each_s = base_s * draw.uniform(1.0, 5.0) / aim
    by_context = draw.choice((0.0, 0.5)) * each_s
    per_context_s = by_context / (law.prompt_tokens + law.output_tokens / 2)
    cost = StepCost(base_s, each_s - by_context, per_context_s, prefill_s)
    context = aim * (law.prompt_tokens + law.output_tokens // 2)
    # requests join at such a rate that each step reads so many prompt tokens
    prefill = aim * law.prompt_tokens // law.output_tokens
    return cost, cost.seconds(aim, context, prefill)
