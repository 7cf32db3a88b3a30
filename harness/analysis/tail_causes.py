"""Why one request is beyond p99: the rules, each with the evidence in words. Pure.

The *excess* is what the request took beyond the median of its level. A cause must be there at
the time, and where its share can be worked out it must make up half of the excess. What others'
prompts took counts as far as it is more than a request of the level usually sees, and only where
the request took a quarter longer than the median: less is what requests differ by anyway.

TTFT, from sent to the first token, in this order:
    client       the first token shares its read with a later one, the stream was buffered, or the
                 client stood still for half of the excess on stamps that are its own
    long prompt  1.5 times the usual prompt or more
    preemption   the server's counter rose meanwhile
    memory       requests wait while the KV pool is full
    prefill      reading others' prompts took half of the excess, and seats were free
    queue        requests wait
    prefill      as above, where no gauge shows requests waiting
TPOT, from the first token to the last:
    client       the stream was buffered, or the client stood still, as above
    preemption   the counter rose around its longest gap, which is half of the excess
    prefill      gaps in which others' prompts were read are half of the excess longer than usual
    preemption   the counter rose at any time of it
    memory       the KV pool was full around its longest gap
Whatever is left is *not explained*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.analysis.client_samples import STALL_S
from harness.analysis.table import Ints
from harness.analysis.tail_moment import FULL_POOL, Level, Queue
from harness.analysis.tail_types import TailCause, TailFigure
from harness.analysis.throughput import output_tokens, prompt_tokens
from harness.kv.units import counted
from harness.observe import names

#: Share of the excess that a cause must make up.
EXPLAINS = 0.5
#: Times the usual prompt from which on a prompt is long.
LONG_PROMPT = 1.5
#: Times the median from which on a request stands out.
STANDS_OUT = 1.25
#: Requests of a level that are looked at for what is usual.
_SAMPLE = 100

Said = tuple[TailCause, str]


@dataclass(frozen=True)
class Late:
    """One request of the tail: its row in the table and what it took beyond the median."""

    row: int
    figure: TailFigure
    value_s: float
    #: of the whole span: for TPOT times its tokens
    excess_s: float
    #: of the level
    median_s: float
    start_s: float
    end_s: float

    @property
    def stands_out(self) -> bool:
        """Whether it took longer than requests of its level differ by."""
        return self.value_s >= STANDS_OUT * self.median_s


class Explainer:
    """The rules, over one cell."""

    def __init__(self, level: Level, rows: Ints, origin_s: float) -> None:
        """``rows``: the counted successes, one at least.

        ``origin_s``: the level's start, from which the evidence counts its seconds.
        """
        self.table = level.table
        self.origin_s = origin_s
        self._level = level
        self._prompts = prompt_tokens(level.table)
        self._usual = float(np.median(self._prompts[rows]))
        self._some: list[int] = rows[:: max(1, rows.size // _SAMPLE)].tolist()
        self._tokens = output_tokens(level.table)

    def late(self, row: int, figure: TailFigure, value_s: float, median_s: float) -> Late:
        """The request of a row, as one of the tail."""
        sent, table = float(self.table.sent_s[row]), self.table
        excess = value_s - median_s
        if figure == "TTFT":
            return Late(row, figure, value_s, excess, median_s, sent, sent + value_s)
        times = max(1, int(self._tokens[row]) - 1)
        start, end = sent + float(table.first_s[row]), sent + float(table.last_s[row])
        return Late(row, figure, value_s, excess * times, median_s, start, end)

    def explain(self, late: Late) -> Said:
        """Its cause and the evidence."""
        for rule in _RULES[late.figure]:
            said = rule(self, late)
            if said is not None:
                return said
        if not late.stands_out:
            more = (late.value_s / late.median_s - 1.0) * 100 if late.median_s > 0 else 0.0
            return "not_explained", f"only {more:.1f} % beyond the median: nothing stands out"
        return "not_explained", "nothing in the records or the server's gauges tells why"

    def client(self, late: Late) -> Said | None:
        """Whether the client or something before it made the request look late."""
        table = self.table
        if table.buffered[late.row]:
            return "client", "its stream was buffered on its way and came at its end"
        if late.figure == "TTFT" and table.first_coalesced[late.row]:
            return "client", "its first token shares a read with a later one: an upper bound"
        lag = self._level.lag_s(late.start_s, late.end_s)
        own = not table.kernel_clock[late.row]
        if own and lag >= max(STALL_S, EXPLAINS * late.excess_s):
            return "client", f"the client stood still for {_ms(lag)} and stamps its reads itself"
        return None

    def long_prompt(self, late: Late) -> Said | None:
        """Whether it had more to read than usual."""
        tokens = int(self._prompts[late.row])
        if self._usual <= 0 or tokens < LONG_PROMPT * self._usual:
            return None
        return "long_prompt", f"{tokens:,} prompt tokens, the median is {self._usual:,.0f}"

    def preempted(self, late: Late) -> Said | None:
        """Whether the counter rose at any time of it."""
        return self._preemption(late.start_s, late.end_s, "")

    def preempted_in_gap(self, late: Late) -> Said | None:
        """Whether the counter rose around the longest gap, and that is long enough."""
        start, gap, usual = self._longest_gap(late.row)
        if gap - usual < EXPLAINS * late.excess_s:
            return None
        return self._preemption(start, start + gap, f", around its longest gap, {_ms(gap)}")

    def _preemption(self, start_s: float, end_s: float, more: str) -> Said | None:
        rise = self._level.rise(names.PREEMPTIONS_TOTAL, start_s, end_s)
        if rise is None:
            return None
        by, first, last = rise
        span = f"{first - self.origin_s:.1f} and {last - self.origin_s:.1f} s of the level"
        return "preemption", f"{counted(round(by), 'preemption')} between {span}{more}"

    def memory(self, late: Late) -> Said | None:
        """Whether requests waited for KV memory."""
        queue = self._level.queue(late.start_s, late.end_s)
        if queue is None or not queue.pool_full:
            return None
        if queue.waiting_for_kv is not None:
            return "memory", f"{_wait(queue.waiting_for_kv)} for KV memory {_when(queue)}"
        used = f"with {_share(queue.usage)} of the pool used"
        return "memory", f"{_wait(queue.waiting)} {_when(queue)}, {used}"

    def pool_full(self, late: Late) -> Said | None:
        """Whether the pool was full around the longest gap."""
        start, gap, _ = self._longest_gap(late.row)
        usage = self._level.fullest(start, start + gap)
        if usage is None or usage < FULL_POOL:
            return None
        return "memory", f"{_share(usage)} of the KV pool used around its longest gap, {_ms(gap)}"

    def prefill_with_free_seats(self, late: Late) -> Said | None:
        """Others' prompts, unless a seat is what the request waited for."""
        queue = self._level.queue(late.start_s, late.end_s)
        return None if queue is None or queue.seated else self.prefill_before(late)

    def queue(self, late: Late) -> Said | None:
        """Whether requests waited."""
        queue = self._level.queue(late.start_s, late.end_s)
        return None if queue is None else ("queue", _queue_text(queue))

    def prefill_before(self, late: Late) -> Said | None:
        """Whether reading others' prompts took long enough before its first token."""
        n, busy = self._level.others_prefill(late.start_s, late.end_s)
        usual = self._usual_before
        if not late.stands_out or busy - usual < EXPLAINS * late.excess_s:
            return None
        return (
            "prefill",
            f"{_prompts(n)} read before its first token, for some {_ms(busy)} (usual: "
            f"{_ms(usual)}); its excess is {_ms(late.excess_s)}",
        )

    def prefill_between(self, late: Late) -> Said | None:
        """Whether gaps with others' prompts in them are what is long."""
        shared, all_gaps, extra = self._shared_gaps(late.row)
        usual = self._usual_between
        if not late.stands_out or extra - usual < EXPLAINS * late.excess_s:
            return None
        return (
            "prefill",
            f"others' prompts were read in {shared} of its {all_gaps} gaps, for which they took "
            f"{_ms(extra)} longer (usual: {_ms(usual)}); its excess is {_ms(late.excess_s)}",
        )

    def _shared_gaps(self, row: int) -> tuple[int, int, float]:
        """Gaps in which others' prompts were read, all gaps, what the former are longer by."""
        at = self._level.arrivals_s(row)
        gaps = np.diff(at)
        shared = self._level.prefills_over(at[:-1], at[1:]) > 0
        if not shared.any():
            return 0, int(gaps.size), 0.0
        alone = float(np.median(gaps[~shared])) if not shared.all() else float(gaps.min())
        extra = float(np.maximum(gaps[shared] - alone, 0.0).sum())
        return int(shared.sum()), int(gaps.size), extra

    @cached_property
    def _usual_before(self) -> float:
        """Median time of others' prompts before a first token."""
        level = self._level
        ends = {row: float(self.table.sent_s[row] + self.table.first_s[row]) for row in self._some}
        busy = [level.others_prefill(float(self.table.sent_s[r]), e)[1] for r, e in ends.items()]
        return float(np.median(busy))

    @cached_property
    def _usual_between(self) -> float:
        """Median of what gaps with others' prompts in them are longer by."""
        return float(np.median([self._shared_gaps(row)[2] for row in self._some]))

    def _longest_gap(self, row: int) -> tuple[float, float, float]:
        """Start, length and the median of the gaps between its token events."""
        at = self._level.arrivals_s(row)
        gaps = np.diff(at)
        place = int(np.argmax(gaps))
        return float(at[place]), float(gaps[place]), float(np.median(gaps))


_Rule = Callable[[Explainer, Late], Said | None]
_RULES: dict[TailFigure, tuple[_Rule, ...]] = {
    "TTFT": (
        Explainer.client,
        Explainer.long_prompt,
        Explainer.preempted,
        Explainer.memory,
        Explainer.prefill_with_free_seats,
        Explainer.queue,
        Explainer.prefill_before,
    ),
    "TPOT": (
        Explainer.client,
        Explainer.preempted_in_gap,
        Explainer.prefill_between,
        Explainer.preempted,
        Explainer.pool_full,
    ),
}


def _queue_text(queue: Queue) -> str:
    running = f" while {queue.running:.0f} run" if queue.running is not None else ""
    seats = ", which is max_num_seqs" if queue.seated else ""
    return f"{_wait(queue.waiting)} {_when(queue)}{running}{seats}"


def _when(queue: Queue) -> str:
    return "meanwhile" if queue.inside else "in the samples around it"


def _wait(n: float) -> str:
    return f"{counted(round(n), 'request')} {'waits' if round(n) == 1 else 'wait'}"


def _prompts(n: int) -> str:
    return f"{counted(n, 'prompt')} of others {'was' if n == 1 else 'were'}"


def _share(ratio: float | None) -> str:
    return f"{(ratio or 0.0) * 100:.1f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
