"""What is known inside a running level: requests as they are read, scrapes as they are written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.analysis.admission import admission_counts
from harness.live.times import meets, request_times
from harness.load.backend_watch import LOST_AFTER_S
from harness.load.no_answer import NO_ANSWER
from harness.load.phases import Progress
from harness.manifest import BackendInfo
from harness.observe.aggregate import canonical_values, kv_pool
from harness.observe.backends import backend_kind
from harness.observe.exposition import Page
from harness.observe.series import BackendSeries, KvPool, Series
from harness.plan.search_types import Decision, SoFar
from harness.plan.sequential import FAILED_SHARE, FEW
from harness.records import CellKey, Loop, RequestRecord
from harness.search.backlog import Backlog
from harness.search.scrape_tail import ScrapeTail
from harness.workload import Slo

#: How often a running level is looked at.
LOOK_S = 0.25
#: so long it takes until a server that is gone has been given up, its last question included
_PATIENCE_S = LOST_AFTER_S + 3.0
#: How a level ends by the rule, as its events name it.
REASONS: dict[Decision, str] = {
    "enough": "complete",
    "collapse": "collapse",
    "limit": "time_limit",
}


class LevelWatch:
    """Counts one level's requests and scrapes since its window opened."""

    def __init__(
        self,
        info: BackendInfo,
        cell: CellKey,
        slo: Slo,
        tail: ScrapeTail | None,
        loop: Loop = "closed",
    ) -> None:
        """``tail``: where the server's pages come from; None: it has none."""
        self._loop = loop
        self._backlog = Backlog()
        self.cell = cell
        self._info = info
        self._slo = slo
        self._tail = tail
        self._kind = backend_kind(info.kind)
        self._pool: KvPool | None = None
        self._ok = self._failed = self._met = 0
        #: since the level began: requests that succeeded, that failed, of those the ones that got
        #: an answer, and users that had one fail
        self._any_ok = self._any_failed = self._answered = 0
        self._failing: set[int] = set()
        self._points: dict[str, list[tuple[float, float]]] = {}
        #: samples, those with requests kept out, preemptions
        self._seen: tuple[int, int, float] = (0, 0, 0.0)

    def add(self, record: RequestRecord, open_s: float | None) -> None:
        """A request of this level was read."""
        self._count(record)
        # counted are the requests sent in the window, in an open loop those due in it
        at_s = record.t_sent_s if self._loop == "closed" else record.t_intended_s
        if open_s is None or at_s is None or at_s < open_s or record.outcome == "cancelled":
            return
        if record.outcome != "ok":
            self._failed += 1
            return
        self._ok += 1
        times = request_times(record)
        self._met += meets(times, self._slo)
        if times is not None:
            self._backlog.answered(at_s, times.ttft_ns * 1e-9, record.t_end_s - at_s)

    def _count(self, record: RequestRecord) -> None:
        if record.outcome == "ok":
            self._any_ok += 1
        elif record.outcome != "cancelled":
            self._any_failed += 1
            self._answered += record.outcome not in NO_ANSWER
            self._failing.add(record.user)

    def none_succeeds(self, after_s: float) -> bool:
        """Whether all requests of the level's first ``after_s`` failed, those of many users.

        One user whose requests fail at once has many fail while the others' first ones run.
        Where none got an answer the server may be gone, which is not this level's doing: that
        is found out first.
        """
        users = len(self._failing)
        if not self._answered and after_s < _PATIENCE_S:
            return False
        return (
            not self._any_ok and self._any_failed >= FEW and users >= FAILED_SHARE * self.cell.level
        )

    def in_flight(self, now_s: float, requests: int) -> None:
        """So many requests are in flight now; told some times a second in an open loop."""
        self._backlog.in_flight(now_s, requests)

    def so_far(self, open_s: float, now_s: float) -> SoFar:
        """Everything since the window opened."""
        pages = self._tail.read() if self._tail is not None else []
        for t_s, page in pages:
            self._add_page(t_s, page)
        if pages:
            self._seen = self._look(open_s, now_s)
        samples, kept_out, preemptions = self._seen
        ended = self._ok + self._failed
        rising = self._backlog.rises(open_s, now_s, ended)
        return SoFar(
            elapsed_s=now_s - open_s,
            ok=self._ok,
            failed=self._failed,
            met=None if self._slo == Slo() else self._met,
            samples=samples,
            kept_out=kept_out,
            preemptions=preemptions,
            in_flight_rising=rising,
            overloaded=rising and self._backlog.clear(open_s, now_s, ended),
        )

    def _add_page(self, t_s: float, page: Page) -> None:
        if self._kind.pool is not None:
            self._pool = kv_pool(self._kind.pool, page) or self._pool
        for name, value in canonical_values(self._kind, page).items():
            self._points.setdefault(name, []).append((t_s, value))

    def _look(self, open_s: float, now_s: float) -> tuple[int, int, float]:
        """The samples since the window opened, read as the report reads them.

        Some hundred samples at most: a level has its time limit.
        """
        found = admission_counts(
            self._info,
            self._series(),
            (open_s, now_s),
            self.cell.prompt_tokens,
            self.cell.output_tokens,
        )
        return (0, 0, 0.0) if found is None else (found.samples, found.kept_out, found.preemptions)

    def _series(self) -> BackendSeries:
        return BackendSeries(
            backend=self._info.name,
            source="scraper",
            values={name: Series.of(points) for name, points in self._points.items()},
            pool=self._pool,
            failed_t_s=np.array([], dtype=np.float64),
            failures=(),
            missing=(),
        )


class SequentialClosing:
    """Closes a level's window as soon as what it is to decide is sure, or its time is over."""

    def __init__(
        self,
        watch: LevelWatch,
        decide: Callable[[SoFar], Decision],
        max_level_s: float,
        left_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``max_level_s``: from the level's start, its warm-up included.

        ``left_s``: seconds that are left of the whole search; None: it has no limit.
        """
        self._watch = watch
        self._decide = decide
        self._max_level_s = max_level_s
        self._left_s = left_s
        self._next_look_s = 0.0

    def reason(self, so_far: Progress) -> str | None:
        """``complete``, ``collapse``, ``time_limit`` or None: it goes on."""
        if so_far.now_s - so_far.start_s >= self._max_level_s:
            return "time_limit"
        left_s = self._left_s()
        if left_s is not None and left_s <= 0:
            return "time_limit"
        if so_far.open_s is None:
            # nothing counts yet, but a level of which every request fails shows enough
            none = self._watch.none_succeeds(so_far.now_s - so_far.start_s)
            return "collapse" if none else None
        if so_far.now_s < self._next_look_s:
            return None
        self._next_look_s = so_far.now_s + LOOK_S
        return REASONS.get(self._decide(self._watch.so_far(so_far.open_s, so_far.now_s)))
