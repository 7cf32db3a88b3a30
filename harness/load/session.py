"""Walks the levels: parks users between them, hands out requests, moves on.

Users are the caller's greenlets; they stay alive between levels and wait here, so that
changing backends costs no respawn and nothing is killed to change a level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import gevent
from gevent.event import Event

from harness.load.client import StreamClient
from harness.load.clock import Clock
from harness.load.exchange import Ask, Ended
from harness.load.level import Level, LevelLimits, Phase
from harness.load.preflight import PreparedBackend
from harness.load.reader import AnswerReader
from harness.plan.levels import LevelPolicy
from harness.plan.prompts import prompt_hash
from harness.records import CellKey, LevelSummary, RequestRecord, RunEvent, Workload

#: A user whose request failed waits this long: a dead or full server is not hammered.
BACK_OFF_S = 0.5
#: The policy is asked for this many levels at most once the run has been cut short.
_MAX_SKIPPED = 1000
WORKER = "local"


@dataclass
class Member:
    """One user greenlet."""

    #: its number in the level being run; None while it has none
    number: int | None = None
    parked: bool = False
    #: when it became free of its last request; None after a pause
    free_s: float | None = None
    client: StreamClient | None = None
    backend: str | None = None
    #: its last request that was read failed
    failed: bool = False


@dataclass(frozen=True)
class _Turn:
    """One request of one user."""

    level: Level
    member: Member
    client: StreamClient
    user: int


class Session:
    """The walk through the levels of one run."""

    def __init__(
        self,
        policy: LevelPolicy,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        self._policy = policy
        self._workload = workload
        self._backends = backends
        self._clock = clock
        self._emit = emit
        self._record = record
        self._back_off_s = back_off_s
        self._members: list[Member] = []
        self._done: list[LevelSummary] = []
        self._seq = 0
        self._reader: AnswerReader[_Turn] = AnswerReader(self._judged, clock)
        self._changed = Event()
        self._closed = False
        self.level: Level | None = None
        self._next_level()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        return self.level is None

    @property
    def wanted_users(self) -> int | None:
        """How many users the current level needs; None when the walk is over."""
        return self.level.users if self.level is not None else None

    @property
    def in_flight(self) -> int:
        """Requests being made now."""
        return self.level.in_flight if self.level is not None else 0

    @property
    def waits_for_users(self) -> bool:
        """Whether the level cannot start for want of users."""
        return self.level is not None and self.level.phase is Phase.WAITING

    @property
    def awaited(self) -> set[str]:
        """Backends that are idle now and have levels to come."""
        if self.level is None:
            return set()
        return {cell.backend for cell in self._rest()} - {self.level.cell.backend}

    def join(self) -> Member:
        """A user has come; it calls ``request`` until that is False, then ``leave``."""
        member = Member()
        self._members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """A user is gone."""
        if member in self._members:
            self._members.remove(member)
        if member.client is not None:
            member.client.close()
        # the others may be just enough now
        self._broadcast()

    def request(self, member: Member) -> bool:
        """Wait for a turn and make one request; False when the user is to leave."""
        level = self._await_turn(member)
        if level is None or member.number is None:
            return False
        user = member.number
        client = self._client(member, level.cell.backend)
        level.begun(user)
        turn = _Turn(level, member, client, user)
        over = client.request(
            self._ask(level, member, user),
            lambda over: self._ended(turn, over),
            lambda t_sent_s: level.sent(user, t_sent_s),
        )
        member.free_s = over.t_end_s
        if member.failed:
            member.failed, member.free_s = False, None
            gevent.sleep(self._back_off_s)
        return True

    def settle(self) -> None:
        """Read and record all requests that have ended."""
        self._reader.drain()

    def tick(self) -> None:
        """Time passed; called some times a second."""
        if self.level is not None:
            self.level.tick()
            self._after_change(self.level)

    def abort(self, reason: str) -> None:
        """End the walk now: this level ends with the reason, the others are skipped."""
        self._closed = True
        self.settle()
        level, self.level = self.level, None
        if level is not None:
            level.abort(reason)
            self._done.append(level.summary())
            self._skip_rest(reason)
        self._broadcast()

    def close(self) -> None:
        """Users leave as soon as they are free."""
        self._closed = True
        self._broadcast()

    def _await_turn(self, member: Member) -> Level | None:
        while not self._closed and self.level is not None:
            level = self.level
            if level.phase is Phase.WAITING:
                if len(self._members) > level.users and member.number is None:
                    return None
                member.parked = True
                self._start_when_ready(level)
            if level.may_send and member.number is not None:
                return level
            member.free_s, member.parked = None, True
            self._changed.wait()
        return None

    def _start_when_ready(self, level: Level) -> None:
        members = self._members
        if len(members) != level.users or not all(member.parked for member in members):
            return
        for number, member in enumerate(members):
            member.number, member.parked = number, False
        level.start()
        self._broadcast()

    def _ask(self, level: Level, member: Member, user: int) -> Ask:
        self._seq += 1
        cell = level.cell
        prompt = self._backends[cell.backend].prompts.prompt(self._seq)
        intended_s = member.free_s if member.free_s is not None else self._clock.monotonic()
        return Ask(
            worker=WORKER,
            seq=self._seq,
            cell=cell,
            user=user,
            t_intended_s=intended_s,
            prompt=prompt,
            prompt_hash=prompt_hash(prompt),
            prompt_tokens=self._workload.prompt_tokens,
            output_tokens=self._workload.output_tokens,
        )

    def _client(self, member: Member, backend: str) -> StreamClient:
        if member.client is None or member.backend != backend:
            if member.client is not None:
                member.client.close()
            prepared = self._backends[backend]
            member.client = StreamClient(prepared.options, prepared.dialect, self._clock)
            member.backend = backend
        return member.client

    def _ended(self, turn: _Turn, over: Ended) -> None:
        """Note the end; read the answer later, when the user has sent its next request.

        Reading takes a millisecond or more, in which the server would have one request
        fewer than the level says. What failed is read at once: its user must back off.
        """
        self._reader.put(turn, over)
        if not over.answered:
            self._reader.drain()
        turn.level.ended(turn.user, over.t_end_s)
        self._after_change(turn.level)

    def _judged(self, turn: _Turn, record: RequestRecord) -> None:
        """An answer was read."""
        turn.client.judge(record)
        turn.member.failed = turn.member.failed or record.outcome != "ok"
        turn.level.judged(turn.user, record.outcome)
        self._record(record)

    def _after_change(self, level: Level) -> None:
        """Move on when this level has come to its end."""
        if level is self.level and level.phase is Phase.DONE:
            self.settle()
            self._done.append(level.summary())
            self._next_level()
            self._broadcast()

    def _next_level(self) -> None:
        cell = self._policy.next_cell(self._done)
        for member in self._members:
            member.number = None
        self.level = None if cell is None else self._new_level(cell)

    def _new_level(self, cell: CellKey) -> Level:
        work = self._workload
        listed = dict(zip(work.levels, work.min_requests, strict=True))
        limits = LevelLimits(
            # a policy may choose levels that the user did not list
            min_requests=listed.get(cell.level, work.min_requests[-1]),
            min_level_s=work.min_level_s,
            max_level_s=work.max_level_s,
        )
        return Level(cell, int(cell.level), limits, self._clock, self._emit)

    def _skip_rest(self, reason: str) -> None:
        """Say of every level not reached that it was skipped."""
        for cell in self._rest():
            now = self._clock.monotonic()
            self._emit(
                RunEvent(t_s=now, kind="level_skipped", cell=cell, detail={"reason": reason})
            )

    def _rest(self) -> Iterator[CellKey]:
        """The levels that the policy would still ask for if nothing more were measured."""
        done = list(self._done)
        if self.level is not None:
            done.append(_unmeasured(self.level.cell))
        for _ in range(_MAX_SKIPPED):
            cell = self._policy.next_cell(done)
            if cell is None:
                return
            done.append(_unmeasured(cell))
            yield cell

    def _broadcast(self) -> None:
        """Wake all parked users; each looks for itself."""
        waiting, self._changed = self._changed, Event()
        waiting.set()


def _unmeasured(cell: CellKey) -> LevelSummary:
    """The summary of a level that was not run."""
    return LevelSummary(cell=cell, n_ok=0, n_failed=0, window_s=None, reason="skipped")
