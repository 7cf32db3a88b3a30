"""What a model says of a closed loop of equal requests, worked out in its own time. Pure.

For each level the engine's core is run with so many users, each sending its next request
``think_s`` after the last one ended. The first requests are left out, as a warm-up. From the
core's own state follow the shares of the time in which the first waiting request was kept out
and by what, and from its tokens which requests met the limits. Nothing of the harness's
analysis or arithmetic is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from servers.simulated.core import EngineCore, Sequence
from servers.simulated.model import EngineModel

Cause = Literal["kv_memory", "scheduler_limit", "compute"]

#: a level is limited where requests are kept out for more than this share of the time
KEPT_OUT_SHARE = 0.10
#: of the requests must meet the limits
SLO_SHARE = 0.95
#: requests of each user that are looked at, after its first
_ROUNDS = 8


@dataclass(frozen=True)
class ClosedLoop:
    """The load: equal requests, one in flight per user."""

    prompt_tokens: int
    output_tokens: int
    ttft_limit_s: float | None
    tpot_limit_s: float | None
    think_s: float = 0.001


@dataclass(frozen=True)
class LevelTruth:
    """What the model does at one level."""

    level: int
    kv_share: float
    seqs_share: float
    preemptions: int
    slo_share: float
    ttft_worst_s: float
    tpot_worst_s: float

    @property
    def cause(self) -> Cause | None:
        """What keeps requests out; None when nothing does for long."""
        if self.kv_share >= KEPT_OUT_SHARE or self.preemptions:
            return "kv_memory"
        return "scheduler_limit" if self.seqs_share >= KEPT_OUT_SHARE else None


@dataclass(frozen=True)
class ExpectedKnee:
    """The first bad level and why; None where no level is bad."""

    first_bad: int | None
    cause: Cause | None


@dataclass(frozen=True)
class Expected:
    """The three knees that follow from a model, and the levels they follow from."""

    capacity: ExpectedKnee
    memory: ExpectedKnee
    latency: ExpectedKnee
    levels: tuple[LevelTruth, ...]


def expected_knee(model: EngineModel, load: ClosedLoop, levels: Seq[int]) -> Expected:
    """The first bad level for capacity (memory or seats), memory alone, and latency."""
    truths = tuple(run_level(model, load, level) for level in sorted(levels))
    kept_out = next((t for t in truths if t.cause is not None), None)
    starved = next((t for t in truths if t.cause == "kv_memory"), None)
    slow = next((t for t in truths if t.slo_share < SLO_SHARE), None)
    return Expected(
        capacity=_knee(kept_out, kept_out.cause if kept_out else None),
        memory=_knee(starved, "kv_memory"),
        latency=_knee(slow, (slow.cause or "compute") if slow else None),
        levels=truths,
    )


def _knee(truth: LevelTruth | None, cause: Cause | None) -> ExpectedKnee:
    return ExpectedKnee(None, None) if truth is None else ExpectedKnee(truth.level, cause)


def holds(model: EngineModel, load: ClosedLoop) -> tuple[int, int]:
    """Requests that surely run at once, and the fewest that surely do not all.

    The first are those whose last tokens fit together; of the second not even the prompts
    do. In between it depends on how the requests are spread over their lives.
    """
    if model.layout == "contiguous":
        return model.seats, model.seats + 1
    whole = model.blocks(load.prompt_tokens + load.output_tokens - 1)
    surely = model.usable_blocks // whole
    at_most = model.usable_blocks // model.blocks(load.prompt_tokens)
    return min(surely, model.max_num_seqs), min(at_most, model.max_num_seqs) + 1


def run_level(model: EngineModel, load: ClosedLoop, users: int) -> LevelTruth:
    """Run the core with so many users until each has ended its rounds."""
    return _Loop(model, load, users).run()


class _Loop:
    def __init__(self, model: EngineModel, load: ClosedLoop, users: int) -> None:
        self._core = EngineCore(model)
        self._load, self._users = load, users
        #: (time, user) of requests that are still to come
        self._coming = [(user * 1e-6, user) for user in range(users)]
        self._rounds = [0] * users
        self._first_s: dict[int, float] = {}
        self._now_s = 0.0
        self._span_s = {"kv": 0.0, "seqs": 0.0, "none": 0.0}
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._preempted_before = 0
        self._warm = False

    def run(self) -> LevelTruth:
        """To the end of every user's last round."""
        while min(self._rounds) < _ROUNDS:
            self._step()
        total = sum(self._span_s.values()) or 1.0
        met = [self._meets(*pair) for pair in zip(self._ttft, self._tpot, strict=True)]
        return LevelTruth(
            level=self._users,
            kv_share=self._span_s["kv"] / total,
            seqs_share=self._span_s["seqs"] / total,
            preemptions=self._core.preemptions - self._preempted_before,
            slo_share=sum(met) / len(met),
            ttft_worst_s=max(self._ttft),
            tpot_worst_s=max(self._tpot),
        )

    def _step(self) -> None:
        self._arrive()
        duration_s = self._core.begin_step(self._now_s)
        if duration_s is None:
            self._now_s = self._coming[0][0]
            return
        end_s = self._now_s + duration_s
        blocker = self._core.blocker()
        if self._warm:
            self._span_s[blocker if blocker in ("kv", "seqs") else "none"] += duration_s
        self._now_s = end_s
        # those that came during the step wait for the next one
        self._arrive()
        for sequence in self._core.end_step():
            self._token(sequence)
        if not self._warm and min(self._rounds) >= 1:
            self._warm, self._preempted_before = True, self._core.preemptions

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self._now_s:
            t_s, user = heapq.heappop(self._coming)
            self._core.add(Sequence(user, self._load.prompt_tokens, self._load.output_tokens, t_s))

    def _token(self, sequence: Sequence) -> None:
        user = sequence.key
        if sequence.generated == 1:
            self._first_s[user] = self._now_s
        if not sequence.finished:
            return
        if self._warm:
            gaps = max(1, sequence.output_tokens - 1)
            self._ttft.append(self._first_s[user] - sequence.t_arrival_s)
            self._tpot.append((self._now_s - self._first_s[user]) / gaps)
        self._rounds[user] += 1
        heapq.heappush(self._coming, (self._now_s + self._load.think_s, user))

    def _meets(self, ttft_s: float, tpot_s: float) -> bool:
        load = self._load
        return (load.ttft_limit_s is None or ttft_s <= load.ttft_limit_s) and (
            load.tpot_limit_s is None or tpot_s <= load.tpot_limit_s
        )
