"""What the users of this process do at one level: who has sent, what counts, what is open.

It obeys the phases that ``harness.load.phases`` decides, in this process or in another, and
knows nothing of sockets, greenlets or Locust. An order may come late: which requests count
is settled by their times and the window's edges, as the report settles it.
"""

from __future__ import annotations

from harness.load.no_answer import NO_ANSWER
from harness.load.phases import Order, Phase, Tally
from harness.records import Outcome

_NEVER_S = float("inf")


class LevelUsers:
    """Users numbered ``first``, ``first + 1``, ... of one level."""

    def __init__(self, users: int, first: int = 0) -> None:
        self.users = users
        self.phase = Phase.WAITING
        #: users whose first request has not ended
        self._cold = set(range(first, first + users))
        self._warm_s: float | None = None
        self._open_s: float | None = None
        self._close_s: float | None = None
        #: user -> when its request in flight was sent; None until it is
        self._in_flight: dict[int, float | None] = {}
        #: when requests were sent that the window may turn out to hold
        self._sent_s: list[float] = []
        self.counted_sent = 0
        self.n_ok = 0
        self.n_failed = 0
        #: users whose last request got no answer
        self._unanswered: set[int] = set()

    @property
    def warm_s(self) -> float | None:
        """When the last user's first request ended; None while one has not."""
        return self._warm_s

    @property
    def in_flight(self) -> int:
        """Requests between ``begun`` and ``ended``."""
        return len(self._in_flight)

    @property
    def counted_in_flight(self) -> int:
        """Requests in flight that were sent inside the window."""
        return sum(map(self._is_counted, self._in_flight.values()))

    @property
    def unanswered(self) -> int:
        """Users whose last request got no answer."""
        return len(self._unanswered)

    def acts_on(self, phase: Phase) -> bool:
        """Whether it has heard of a phase: it acts on the one that it was told last."""
        return self.phase is phase

    def obey(self, order: Order) -> None:
        """A phase has begun."""
        self.phase = order.phase
        self._open_s, self._close_s = order.open_s, order.close_s
        if order.open_s is not None:
            self.counted_sent += sum(map(self._is_counted, self._sent_s))
            self._sent_s.clear()

    def begun(self, user: int) -> None:
        """A user took up a request: it connects, then sends."""
        self._in_flight[user] = None

    def sent(self, user: int, t_sent_s: float) -> None:
        """Its first byte is about to be written; called again when it is sent anew."""
        if self._in_flight[user] is not None:
            return
        # once it is known that the window is closed, nothing is inside any more
        late = self.phase not in (Phase.WARMUP, Phase.MEASURE)
        self._in_flight[user] = _NEVER_S if late else t_sent_s
        if self.phase is Phase.WARMUP:
            self._sent_s.append(t_sent_s)
        else:
            self.counted_sent += self._is_counted(self._in_flight[user])

    def judged(self, user: int, outcome: Outcome) -> None:
        """A user's request was read, perhaps some time after it ended."""
        if outcome == "ok":
            self.n_ok += 1
        elif outcome != "cancelled":
            self.n_failed += 1
        if outcome in NO_ANSWER:
            self._unanswered.add(user)
        else:
            self._unanswered.discard(user)

    def ended(self, user: int, t_end_s: float) -> None:
        """A user's request is over, whatever its outcome."""
        self._in_flight.pop(user, None)
        self._cold.discard(user)
        if not self._cold and self._warm_s is None:
            self._warm_s = t_end_s

    def tally(self) -> Tally:
        """All of it, for a process that decides elsewhere."""
        return Tally(
            phase=self.phase,
            users=self.users,
            warm_s=self.warm_s,
            counted_sent=self.counted_sent,
            counted_in_flight=self.counted_in_flight,
            in_flight=self.in_flight,
            unanswered=self.unanswered,
            n_ok=self.n_ok,
            n_failed=self.n_failed,
        )

    def _is_counted(self, t_sent_s: float | None) -> bool:
        if t_sent_s is None or self._open_s is None or t_sent_s < self._open_s:
            return False
        return self._close_s is None or t_sent_s <= self._close_s
