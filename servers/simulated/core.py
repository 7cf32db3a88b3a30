"""The engine's steps: who is admitted, who is preempted, who gets a token. Pure.

No clock and no I/O: ``begin_step`` decides and says how long the step takes, ``end_step``
gives the tokens. Scheduling follows vLLM V1: running requests first, in the order of their
admission; then the waiting ones, first come first served, none overtaking, and none in a
step that had to preempt. Prompts are cut to the step's token budget (chunked prefill).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from servers.simulated.model import EngineModel

#: ``seqs``: max_num_seqs run; ``kv``: the memory is taken; ``budget``: the step is full
Blocker = Literal["seqs", "kv", "budget"]


@dataclass(eq=False)
class Sequence:
    """One request inside the engine."""

    key: int
    prompt_tokens: int
    output_tokens: int
    t_arrival_s: float
    generated: int = 0
    #: tokens whose K and V are in the cache
    computed: int = 0
    blocks: int = 0
    preemptions: int = 0
    #: tokens that the step in progress computes
    scheduled: int = 0
    t_first_run_s: float | None = None

    @property
    def total(self) -> int:
        """Tokens known so far."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether its last token has been generated."""
        return self.generated >= self.output_tokens


class EngineCore:
    """An engine between two steps, or inside one."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.free_blocks = model.usable_blocks
        self.preemptions = 0
        self.prompt_tokens = 0
        self.in_step = False

    def add(self, sequence: Sequence) -> None:
        """A request arrives; the next step looks at it."""
        self.waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """A request leaves; its memory is free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def blocker(self) -> Blocker | None:
        """What keeps the first waiting request out; None when the next step takes it."""
        if not self.waiting:
            return None
        if len(self.running) >= self.model.max_num_seqs:
            return "seqs"
        if self.model.layout == "contiguous":
            return "kv" if len(self.running) >= self.model.slots else None
        first = self.waiting[0]
        tokens = min(first.total, self.model.max_num_batched_tokens)
        return "kv" if self.model.blocks(tokens) > self.free_blocks else None

    def begin_step(self, now_s: float) -> float | None:
        """Decide what the next step does; its duration in seconds, None without work."""
        if not self.has_work:
            return None
        before = self.preemptions
        budget = self._schedule_running(self.model.max_num_batched_tokens)
        if self.preemptions == before:
            self._admit(budget, now_s)
        at_work = [s for s in self.running if s.scheduled]
        prefill = sum(s.scheduled for s in at_work if s.scheduled > 1 or s.computed == 0)
        context = sum(s.computed + s.scheduled for s in at_work)
        self.in_step = True
        return self.model.cost.seconds(len(at_work), context, prefill)

    def end_step(self) -> list[Sequence]:
        """The step is over: those that got a token, in the order of their admission.

        A request that got its last one has left.
        """
        self.in_step = False
        served: list[Sequence] = []
        for sequence in self.running:
            sequence.computed += sequence.scheduled
            if sequence.scheduled and sequence.computed == sequence.total:
                if sequence.generated == 0:
                    self.prompt_tokens += sequence.prompt_tokens
                sequence.generated += 1
                served.append(sequence)
            sequence.scheduled = 0
        for sequence in served:
            if sequence.finished:
                self.running.remove(sequence)
                self._release(sequence)
        return served

    def _schedule_running(self, budget: int) -> int:
        """Give each running request its tokens; returns what is left of the budget."""
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.total - sequence.computed, budget)
            if self._make_room(sequence, sequence.computed + tokens):
                sequence.scheduled = tokens
                budget -= tokens
            index += 1
        return budget

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Take blocks for so many tokens, preempting the youngest; False: it was itself."""
        while not self._take(sequence, tokens):
            youngest = self.running.pop()
            self._release(youngest)
            youngest.computed = youngest.scheduled = 0
            youngest.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(youngest)
            if youngest is sequence:
                return False
        return True

    def _admit(self, budget: int, now_s: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.model.seats:
            sequence = self.waiting[0]
            tokens = min(sequence.total, budget)
            if not self._take(sequence, tokens):
                return
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.scheduled = tokens
            if sequence.t_first_run_s is None:
                sequence.t_first_run_s = now_s
            budget -= tokens

    def _take(self, sequence: Sequence, tokens: int) -> bool:
        """Have blocks for so many tokens; a slot has room for all of them."""
        if self.model.layout == "contiguous":
            return True
        more = self.model.blocks(tokens) - sequence.blocks
        if more > self.free_blocks:
            return False
        sequence.blocks += more
        self.free_blocks -= more
        return True

    def _release(self, sequence: Sequence) -> None:
        self.free_blocks += sequence.blocks
        sequence.blocks = 0
