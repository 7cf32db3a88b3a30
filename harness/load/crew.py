"""The users of this process: parks them between levels and makes their requests.

Users are the caller's greenlets; they stay alive between levels and wait here, so that
changing backends costs no respawn and nothing is killed to change a level. Which level is
run and which phase it is in is decided elsewhere, in this process or in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import gevent
from gevent.event import Event

from harness.load.client import StreamClient
from harness.load.clock import Clock
from harness.load.dialect import Prompt
from harness.load.exchange import Ask, Ended
from harness.load.preflight import PreparedBackend, Prompts
from harness.load.reader import AnswerReader
from harness.plan.leaving import leave_after
from harness.plan.prompts import prompt_hash
from harness.records import CellKey, Outcome, RequestRecord
from harness.workload import Workload

#: A user whose request failed waits this long: a dead or full server is not hammered.
BACK_OFF_S = 0.5


class CrewLevel(Protocol):
    """The level as its users see it."""

    @property
    def cell(self) -> CellKey:
        """What is measured."""
        ...

    @property
    def may_send(self) -> bool:
        """Whether a free user sends another request."""
        ...

    def begun(self, user: int) -> None:
        """A user took up a request."""
        ...

    def sent(self, user: int, t_sent_s: float) -> None:
        """Its first byte is about to be written."""
        ...

    def judged(self, user: int, outcome: Outcome) -> None:
        """It was read."""
        ...

    def ended(self, user: int, t_end_s: float) -> None:
        """It is over."""
        ...


@dataclass(frozen=True)
class Numbering:
    """Which of several processes this one is: their records and prompts must differ."""

    worker: str
    index: int = 0
    of: int = 1

    def prompt_number(self, seq: int) -> int:
        """The number of the prompt of this process's request ``seq``, counted from 1."""
        return (seq - 1) * self.of + self.index + 1


class Words(NamedTuple):
    """What one request says and asks for; see ``Ask`` for the last three."""

    prompt: Prompt
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int | None = None
    conversation: int | None = None
    turn: int | None = None


@dataclass
class Member:
    """One user greenlet."""

    #: its number in the level being run; None while it has none
    number: int | None = None
    parked: bool = False
    #: the ramp lets it send from here on
    starts_s: float = 0.0
    #: when it became free of its last request; None after a pause
    free_s: float | None = None
    client: StreamClient | None = None
    backend: str | None = None
    #: its last request that was read failed
    failed: bool = False


@dataclass(frozen=True)
class Turn:
    """One request of one user."""

    level: CrewLevel
    member: Member
    client: StreamClient
    user: int


def _nothing() -> None:
    """Nobody needs to know."""


class Crew:
    """The users of one process."""

    def __init__(
        self,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        numbering: Numbering,
        record: Callable[[RequestRecord], None],
        changed: Callable[[], None] = _nothing,
        parked: Callable[[], None] = _nothing,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        """``changed`` is called when a request has ended, ``parked`` when a user waits."""
        self._workload = workload
        self._backends = backends
        self._clock = clock
        self._numbering = numbering
        self._record = record
        self._changed = changed
        self._parked = parked
        self._back_off_s = back_off_s
        self._members: list[Member] = []
        self._seq = 0
        self._reader: AnswerReader[Turn] = AnswerReader(self._judged, clock)
        self._news = Event()
        self._closed = False
        #: by backend and length
        self._prompts: dict[tuple[str, int], Prompts] = {}
        self._level: CrewLevel | None = None
        #: users beyond this number leave by themselves; None: whoever sent them takes them
        self._most: int | None = None

    @property
    def present(self) -> int:
        """Users that have come and not left."""
        return len(self._members)

    @property
    def parked(self) -> int:
        """Users that wait for a turn."""
        return sum(member.parked for member in self._members)

    def enter(self, level: CrewLevel | None, most: int | None = None) -> None:
        """The next level, which nobody starts before ``start``; None: there is none."""
        for member in self._members:
            member.number = None
        self._level, self._most = level, most
        self.wake()

    def start(self, first: int = 0) -> None:
        """Number the users from ``first`` on; they send as soon as level and ramp let them."""
        now_s, apart_s = self._clock.monotonic(), 0.0
        if self._level is not None:
            # of all users, those of other processes included
            apart_s = self._workload.ramp_up_s / self._level.cell.level
        for number, member in enumerate(self._members, first):
            member.number, member.parked = number, False
            member.starts_s = now_s + number * apart_s

    def wake(self) -> None:
        """Wake all parked users; each looks for itself."""
        waiting, self._news = self._news, Event()
        waiting.set()

    def join(self) -> Member:
        """A user has come; it calls ``request`` until that is False, then ``leave``."""
        member = self._new_member()
        self._members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """A user is gone."""
        if member in self._members:
            self._members.remove(member)
        if member.client is not None:
            member.client.close()
        # the others may be just enough now
        self.wake()

    def request(self, member: Member) -> bool:
        """Wait for a turn and make one request; False when the user is to leave."""
        level = self._await_turn(member)
        if level is None or member.number is None:
            return False
        user = member.number
        client = self._client(member, level.cell.backend)
        level.begun(user)
        turn = Turn(level, member, client, user)
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

    def close(self) -> None:
        """Users leave as soon as they are free."""
        self._closed = True
        self.wake()

    def _new_member(self) -> Member:
        return Member()

    def _await_turn(self, member: Member) -> CrewLevel | None:
        while not self._closed and self._level is not None:
            if member.number is None:
                if self._most is not None and len(self._members) > self._most:
                    return None
                member.parked = True
                self._parked()
            level = self._level
            early_s = None
            if level is not None and level.may_send and member.number is not None:
                early_s = member.starts_s - self._clock.monotonic()
                if early_s <= 0:
                    return level
            member.free_s, member.parked = None, early_s is None
            self._news.wait(early_s)
        return None

    def _ask(self, level: CrewLevel, member: Member, user: int) -> Ask:
        self._seq += 1
        cell = level.cell
        words = self._words(cell, member, self._numbering.prompt_number(self._seq))
        intended_s = member.free_s if member.free_s is not None else self._clock.monotonic()
        return Ask(
            worker=self._numbering.worker,
            seq=self._seq,
            cell=cell,
            user=user,
            t_intended_s=intended_s,
            prompt=words.prompt,
            prompt_hash=prompt_hash(words.prompt),
            prompt_tokens=words.prompt_tokens,
            output_tokens=words.output_tokens,
            leave_after=self._leave_after(cell),
            shared_tokens=words.shared_tokens,
            conversation=words.conversation,
            turn=words.turn,
        )

    def _leave_after(self, cell: CellKey) -> int | None:
        """Of a soak: reads after which this request's stream is closed."""
        soak = self._workload.soak
        if soak is None:
            return None
        seed = f"{self._workload.seed} {self._numbering.worker} {self._seq}"
        return leave_after(soak.cancel_share, cell.output_tokens, seed)

    def _prompts_of(self, cell: CellKey) -> Prompts:
        key = cell.backend, cell.prompt_tokens
        if key not in self._prompts:
            self._prompts[key] = self._backends[cell.backend].prompts_of(cell.prompt_tokens)
        return self._prompts[key]

    def _words(self, cell: CellKey, member: Member, number: int) -> Words:
        """What the member's next request says; ``number`` sets its prompt apart from all others."""
        prompt = self._prompts_of(cell).prompt(number)
        return Words(prompt, cell.prompt_tokens, cell.output_tokens)

    def _client(self, member: Member, backend: str) -> StreamClient:
        if member.client is None or member.backend != backend:
            if member.client is not None:
                member.client.close()
            prepared = self._backends[backend]
            member.client = StreamClient(prepared.options, prepared.dialect, self._clock)
            member.backend = backend
        return member.client

    def _ended(self, turn: Turn, over: Ended) -> None:
        """Note the end; read the answer later, when the user has sent its next request.

        Reading takes a millisecond or more, in which the server would have one request
        fewer than the level says. What failed is read at once: its user must back off.
        """
        self._reader.put(turn, over)
        if not over.answered:
            self._reader.drain()
        turn.level.ended(turn.user, over.t_end_s)
        self._changed()

    def _judged(self, turn: Turn, record: RequestRecord) -> None:
        """An answer was read."""
        turn.client.judge(record)
        # whoever left a stream on purpose goes on at once
        turn.member.failed = turn.member.failed or record.outcome not in ("ok", "cancelled")
        turn.level.judged(turn.user, record.outcome)
        self._record(record)
