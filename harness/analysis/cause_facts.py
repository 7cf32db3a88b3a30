"""What a level's figures say for and against each cause of its limit, in words."""

from __future__ import annotations

from harness.analysis.summary_types import CellFigures
from harness.kv.units import counted
from harness.plan.search_types import Cause

#: A pool fuller than this has no room to speak of.
_FULL = 0.95
#: Each token takes this much longer than at the level before: the batch costs time.
_SLOWER = 1.05


def counter_evidence(
    cause: Cause, figures: CellFigures, before: CellFigures | None
) -> tuple[str, ...] | None:
    """What a level says against a cause; None for one that nothing is looked up against.

    ``before`` is a lower level, where one was measured.
    """
    facts = CauseFacts(figures, before)
    if cause == "kv_memory":
        return tuple(facts.no_memory())
    if cause == "scheduler_limit":
        return tuple(facts.no_seats())
    return tuple(facts.no_compute()) if cause == "compute" else None


class CauseFacts:
    """What a level's figures say for and against each cause, in words."""

    def __init__(self, figures: CellFigures, before: CellFigures | None) -> None:
        self._figures, self._before = figures, before
        self._counts = figures.admission.counts

    def memory(self) -> list[str]:
        """For KV memory."""
        said = []
        if self._counts is not None and self._counts.starved:
            said.append(f"requests wait for KV memory in {self._of(self._counts.starved)}")
        if self._counts is not None and self._counts.preemptions > 0:
            said.append(f"{counted(round(self._counts.preemptions), 'preemption')} in the window")
        usage = self._usage()
        if usage is not None and usage >= _FULL:
            said.append(f"the pool is up to {usage * 100:.0f} % full")
        return said or [self._figures.admission.evidence]

    def no_memory(self) -> list[str]:
        """Against KV memory."""
        said = []
        usage = self._usage()
        if usage is not None and usage < _FULL:
            said.append(f"the pool is never more than {usage * 100:.0f} % full")
        return said + self.seats_taken()

    def seats(self) -> list[str]:
        """For max_num_seqs."""
        said = self.seats_taken() or [self._figures.admission.evidence]
        usage = self._usage()
        if usage is not None and usage < _FULL:
            said.append(f"the pool is never more than {usage * 100:.0f} % full")
        return said

    def seats_taken(self) -> list[str]:
        """Whether requests wait while all seats are taken."""
        if self._counts is None or not self._counts.seated:
            return []
        return [f"requests wait while max_num_seqs run in {self._of(self._counts.seated)}"]

    def no_seats(self) -> list[str]:
        """Against max_num_seqs."""
        said = self.waits_for_memory()
        usage, memory = self._usage(), self._figures.memory
        if usage is not None and usage >= _FULL:
            said.append(f"the pool is up to {usage * 100:.0f} % full")
        if usage is None and (memory is None or memory.used_bytes is None):
            said.append("not known: how full the pool is, which the server does not state")
        return said

    def waits_for_memory(self) -> list[str]:
        """Whether requests wait for memory, or lose it."""
        starved = self._counts is not None and bool(
            self._counts.starved or self._counts.preemptions > 0
        )
        return self.memory() if starved else []

    def compute(self) -> list[str]:
        """For the computation."""
        said = []
        if self._counts is not None and not self._counts.kept_out:
            said.append(f"requests are kept out in {self._of(0)}")
        now, then = self._tpot(self._figures), self._tpot(self._before)
        if now is not None and then is not None and self._before is not None:
            level = self._before.cell.level
            if now >= _SLOWER * then and self._figures.cell.level > level:
                said.append(f"a token takes {now:.3g} s (median), {then:.3g} s at level {level:g}")
        elif now is not None:
            said.append(f"a token takes {now:.3g} s (median)")
        return said or [self._figures.admission.evidence]

    def no_compute(self) -> list[str]:
        """Against the computation."""
        said = [*self.seats_taken(), *self.waits_for_memory()]
        if self._counts is None:
            said.append("not known: whether requests are kept out")
        now, then = self._tpot(self._figures), self._tpot(self._before)
        if now is not None and then is not None and now < _SLOWER * then:
            said.append(f"a token takes no longer than at a lower level ({now:.3g} s)")
        if now is not None and then is None:
            said.append("not known: how long a token takes at a lower level")
        return said

    def _of(self, some: int) -> str:
        return f"{some} of {counted(self._counts.samples if self._counts else 0, 'sample')}"

    def _usage(self) -> float | None:
        memory = self._figures.memory
        ratio = memory.usage_ratio if memory is not None else None
        return None if ratio is None else ratio.maximum

    @staticmethod
    def _tpot(figures: CellFigures | None) -> float | None:
        return None if figures is None else figures.latency.tpot_s.value(50)
