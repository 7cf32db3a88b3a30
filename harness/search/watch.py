"""What is known inside a running level: requests as they are read, scrapes as they are written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.analysis.admission import kept_out_samples
from harness.live.times import meets, request_times
from harness.load.phases import Progress
from harness.observe import names
from harness.observe.aggregate import canonical_values, kv_pool
from harness.observe.backends import backend_kind
from harness.observe.exposition import Page
from harness.observe.series import BackendSeries, KvPool, Series
from harness.plan.search_types import Decision, SoFar
from harness.records import BackendInfo, CellKey, RequestRecord, Slo
from harness.search.scrape_tail import ScrapeTail

#: How often a running level is looked at.
LOOK_S = 0.25
#: How a level ends by the rule, as its events name it.
REASONS: dict[Decision, str] = {
    "enough": "complete",
    "collapse": "collapse",
    "limit": "time_limit",
}


class LevelWatch:
    """Counts one level's requests and scrapes since its window opened."""

    def __init__(self, info: BackendInfo, cell: CellKey, slo: Slo, tail: ScrapeTail | None) -> None:
        """``tail``: where the server's pages come from; None: it has none."""
        self.cell = cell
        self._info = info
        self._slo = slo
        self._tail = tail
        self._kind = backend_kind(info.kind)
        self._pool: KvPool | None = None
        self._ok = self._failed = self._met = 0
        self._samples = self._kept_out = 0
        #: of the counter's last sample before the window, and of its newest
        self._preempted: tuple[float, float] | None = None

    def add(self, record: RequestRecord, open_s: float | None) -> None:
        """A request of this level was read."""
        sent_s = record.t_sent_s
        if open_s is None or sent_s is None or sent_s < open_s or record.outcome == "cancelled":
            return
        if record.outcome != "ok":
            self._failed += 1
            return
        self._ok += 1
        self._met += meets(request_times(record), self._slo)

    def so_far(self, open_s: float, now_s: float) -> SoFar:
        """Everything since the window opened."""
        for t_s, page in self._tail.read() if self._tail is not None else ():
            self._look(t_s, page, open_s)
        before, newest = self._preempted or (0.0, 0.0)
        return SoFar(
            elapsed_s=now_s - open_s,
            ok=self._ok,
            failed=self._failed,
            met=None if self._slo == Slo() else self._met,
            samples=self._samples,
            kept_out=self._kept_out,
            preemptions=max(0.0, newest - before),
            in_flight_rising=False,
        )

    def _look(self, t_s: float, page: Page, open_s: float) -> None:
        """One page: does it say that requests are kept out?"""
        values = canonical_values(self._kind, page)
        if self._kind.pool is not None:
            self._pool = kv_pool(self._kind.pool, page) or self._pool
        counter = values.get(names.PREEMPTIONS_TOTAL)
        if counter is not None:
            inside = t_s >= open_s and self._preempted is not None
            before = self._preempted[0] if inside and self._preempted is not None else counter
            self._preempted = (before, counter)
        if t_s < open_s:
            return
        found = kept_out_samples(
            self._info,
            _one_sample(self._info.name, t_s, values, self._pool),
            (t_s, t_s),
            self.cell.prompt_tokens,
            self.cell.output_tokens,
        )
        if found is not None:
            self._samples += int(found.size)
            self._kept_out += int(found.sum())


def _one_sample(
    backend: str, t_s: float, values: dict[str, float], pool: KvPool | None
) -> BackendSeries:
    return BackendSeries(
        backend=backend,
        source="scraper",
        values={name: Series.of([(t_s, value)]) for name, value in values.items()},
        pool=pool,
        failed_t_s=np.array([], dtype=np.float64),
        failures=(),
        missing=(),
        n_scrapes=1,
    )


class SequentialClosing:
    """Closes a level's window as soon as what it is to decide is sure, or its time is over."""

    def __init__(
        self, watch: LevelWatch, decide: Callable[[SoFar], Decision], max_level_s: float
    ) -> None:
        """``max_level_s``: from the level's start, its warm-up included."""
        self._watch = watch
        self._decide = decide
        self._max_level_s = max_level_s
        self._next_look_s = 0.0

    def reason(self, so_far: Progress) -> str | None:
        """``complete``, ``collapse``, ``time_limit`` or None: it goes on."""
        if so_far.now_s - so_far.start_s >= self._max_level_s:
            return "time_limit"
        if so_far.open_s is None or so_far.now_s < self._next_look_s:
            return None
        self._next_look_s = so_far.now_s + LOOK_S
        return REASONS.get(self._decide(self._watch.so_far(so_far.open_s, so_far.now_s)))
