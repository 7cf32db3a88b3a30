"""The walk through levels with users as greenlets and servers as threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent
import msgspec
import pytest

from harness.load.clock import SystemClock
from harness.load.preflight import PreparedBackend, prepare
from harness.load.session import Session
from harness.plan.levels import FixedLevels, LevelPolicy, interleaved_cells
from harness.plan.matrix import MatrixLevels
from harness.records import RequestRecord, RunEvent
from harness.workload import Soak, Workload
from tests.load.test_settings import settings
from tests.support.fake_openai import FakeOpenAi, serve
from tests.support.scripted_server import (
    DONE,
    PATIENCE_S,
    Peer,
    Request,
    ScriptedServer,
    text_chunk,
)

CLOCK = SystemClock()


@dataclass
class Walk:
    """A session, what it wrote, and the greenlets of its users."""

    session: Session
    events: list[RunEvent] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    users: list[gevent.Greenlet[[], None]] = field(default_factory=list)
    backends: dict[str, PreparedBackend] = field(default_factory=dict)
    workload: Workload | None = None

    def again(self, policy: LevelPolicy, workload: Workload | None = None) -> Walk:
        """Another walk over the same servers."""
        work = workload or self.workload
        assert work is not None
        events: list[RunEvent] = []
        records: list[RequestRecord] = []
        session = Session(
            policy,
            work,
            self.backends,
            CLOCK,
            emit=events.append,
            record=records.append,
            back_off_s=5.0,
        )
        return Walk(session, events, records)

    def come(self, number: int) -> None:
        self.users += [gevent.spawn(self._user) for _ in range(number)]

    def _user(self) -> None:
        member = self.session.join()
        try:
            while self.session.request(member):
                pass
        finally:
            self.session.leave(member)

    def follow(self) -> None:
        """Bring the users that each level wants, as a shape does, until all is done."""
        with gevent.Timeout(PATIENCE_S):
            while (wanted := self.session.wanted_users) is not None:
                self.users = [user for user in self.users if not user.dead]
                if wanted > len(self.users):
                    self.come(wanted - len(self.users))
                gevent.sleep(0.005)
                self.session.tick()
            gevent.joinall(self.users)

    def seen(self, kind: str) -> list[str]:
        return [e.cell.label for e in self.events if e.kind == kind and e.cell is not None]


@contextmanager
def walk(
    *fakes: FakeOpenAi,
    levels: tuple[float, ...] = (1.0, 3.0),
    requests: int = 4,
    repeats: int = 1,
    ramp_up_s: float = 0.0,
) -> Iterator[tuple[Walk, list[ScriptedServer]]]:
    """A walk over servers named a, b, ... of which each is probed first."""
    servers = [serve(fake) for fake in fakes]
    for server in servers:
        server.__enter__()
    try:
        names = "ab"[: len(fakes)]
        text = ",".join(f"{n}={s.url}" for n, s in zip(names, servers, strict=True))
        options = settings(
            backends=text,
            levels=",".join(f"{level:g}" for level in levels),
            min_requests=str(requests),
            min_level_seconds="0",
            ramp_up_seconds=str(ramp_up_s),
            prompt_tokens="8",
            output_tokens="4",
        )
        backends: dict[str, PreparedBackend] = {
            address.name: prepare(address, options, 7, CLOCK) for address in options.backends
        }
        cells = interleaved_cells([(n, "default") for n in names], levels, 8, 4, repeats)
        events: list[RunEvent] = []
        records: list[RequestRecord] = []
        session = Session(
            FixedLevels(cells),
            options.workload,
            backends,
            CLOCK,
            emit=events.append,
            record=records.append,
            back_off_s=0.01,
        )
        walked = Walk(session, events, records, [], backends, options.workload)
        yield walked, servers
        gevent.killall(walked.users)
    finally:
        for server in servers:
            server.kill()


def test_backends_alternate_and_every_level_is_measured() -> None:
    with walk(FakeOpenAi(), FakeOpenAi()) as (walked, _):
        walked.follow()
    order = ["a 8+4 c1", "b 8+4 c1", "b 8+4 c3", "a 8+4 c3"]
    assert walked.seen("level_start") == order
    assert walked.seen("window_close") == order
    assert walked.seen("level_end") == order
    assert {record.outcome for record in walked.records} == {"ok"}
    # one warm-up request per user and at least four counted ones
    for label in order:
        mine = [record for record in walked.records if record.cell.label == label]
        assert len(mine) >= mine[0].cell.level + 4
        assert {record.user for record in mine} == set(range(int(mine[0].cell.level)))


def test_a_ramp_spreads_the_first_requests_of_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four users over 0.2 s: the one with number i not before i x 0.05 s."""
    places_s: dict[int, float] = {}
    with walk(FakeOpenAi(), levels=(4.0,), ramp_up_s=0.2) as (walked, _):
        crew = walked.session._crew
        plain = crew.start

        def start(first: int = 0) -> None:
            plain(first)
            places_s.update({member.number or 0: member.starts_s for member in crew._members})

        monkeypatch.setattr(crew, "start", start)
        walked.follow()
    assert [places_s[user] - places_s[0] for user in range(4)] == pytest.approx(
        [0.0, 0.05, 0.1, 0.15]
    )
    first: dict[int, float] = {}
    for record in sorted(walked.records, key=lambda record: record.t_intended_s):
        first.setdefault(record.user, record.t_intended_s)
    # waiting for its place in the ramp is no lateness: it is intended from there on
    assert all(first[user] >= places_s[user] for user in range(4))


def test_numbers_and_prompts_are_unique_over_the_run() -> None:
    with walk(FakeOpenAi(), FakeOpenAi()) as (walked, _):
        walked.follow()
    assert len({record.seq for record in walked.records}) == len(walked.records)
    assert len({record.prompt_hash for record in walked.records}) == len(walked.records)


def test_users_stay_from_level_to_level_and_keep_their_connections() -> None:
    with walk(FakeOpenAi(), levels=(2.0, 4.0)) as (walked, servers):
        before = servers[0].connections
        walked.follow()
        # two users, then two more: four connections in all
        assert servers[0].connections - before == 4


def test_fewer_users_in_a_later_level() -> None:
    with walk(FakeOpenAi(), levels=(1.0, 3.0), repeats=2) as (walked, _):
        walked.follow()
    assert walked.seen("level_end") == ["a 8+4 c1", "a 8+4 c3", "a 8+4 c1 r1", "a 8+4 c3 r1"]
    last = [record for record in walked.records if record.cell.label == "a 8+4 c1 r1"]
    assert {record.user for record in last} == {0}


def test_in_a_closed_loop_a_request_is_intended_when_its_user_became_free() -> None:
    with walk(FakeOpenAi(), levels=(1.0,)) as (walked, _):
        walked.follow()
    ended = [record.t_end_s for record in walked.records]
    assert [record.t_intended_s for record in walked.records[1:]] == ended[:-1]


def test_refused_requests_are_failures_and_the_walk_goes_on() -> None:
    fake = FakeOpenAi(fault=lambda peer, _: peer.reply(503, {"detail": "full"}))
    with walk(fake, levels=(2.0,)) as (walked, _):
        walked.follow()
    assert {record.outcome for record in walked.records} == {"rejected"}
    assert walked.seen("level_end") == ["a 8+4 c2"]


def test_an_abort_skips_the_rest_and_sends_the_users_home() -> None:
    fake = FakeOpenAi()
    with walk(fake, levels=(1.0, 2.0)) as (walked, _):
        fake.gate.clear()
        walked.come(1)
        with gevent.Timeout(PATIENCE_S):
            while fake.streams < 2:
                gevent.sleep(0.001)
        assert walked.session.in_flight == 1
        walked.session.abort("backend_lost")
        assert walked.session.finished
        gevent.killall(walked.users)
        fake.gate.set()
    reasons = {e.kind: e.detail["reason"] for e in walked.events if "reason" in e.detail}
    assert reasons == {"level_end": "backend_lost", "level_skipped": "backend_lost"}
    assert walked.seen("level_skipped") == ["a 8+4 c2"]
    assert [record.outcome for record in walked.records] == ["cancelled"]


def test_a_level_that_waits_when_the_run_ends_is_skipped_with_the_reason() -> None:
    with walk(FakeOpenAi(), levels=(1.0, 2.0)) as (walked, _):
        # no user has come
        walked.session.abort("users_lost")
    assert walked.seen("level_end") == []
    assert walked.seen("level_skipped") == ["a 8+4 c1", "a 8+4 c2"]
    assert {event.detail["reason"] for event in walked.events} == {"users_lost"}


def test_a_closed_session_takes_no_more_requests() -> None:
    with walk(FakeOpenAi(), levels=(1.0,)) as (walked, _):
        walked.session.close()
        walked.come(1)
        with gevent.Timeout(PATIENCE_S):
            gevent.joinall(walked.users)
    assert walked.records == []


def test_records_survive_their_journal() -> None:
    with walk(FakeOpenAi(), levels=(1.0,)) as (walked, _):
        walked.follow()
    for record in walked.records:
        again = msgspec.json.decode(msgspec.json.encode(record), type=RequestRecord)
        assert again == record


def test_cells_of_several_lengths_get_prompts_and_answers_of_their_own() -> None:
    with walk(FakeOpenAi()) as (walked, _):
        cells = [*interleaved_cells([("a", "default")], (1.0,), 8, 4),
                 *interleaved_cells([("a", "default")], (2.0,), 24, 6)]  # fmt: skip
        walked = walked.again(FixedLevels(cells))
        walked.follow()
    assert walked.seen("level_end") == ["a 8+4 c1", "a 24+6 c2"]
    for record in walked.records:
        assert record.prompt_tokens == record.cell.prompt_tokens
        assert len(record.token_us) == record.cell.output_tokens


def test_a_level_has_ended_only_when_all_its_records_are_there() -> None:
    with walk(FakeOpenAi()) as (walked, _):
        counts: list[tuple[int, int]] = []
        session = walked.session
        assert session.level is not None
        emit = walked.events.append

        def note(event: RunEvent) -> None:
            emit(event)
            if event.kind == "level_end":
                own = [r for r in walked.records if r.cell == event.cell]
                counts.append((len(own), session.in_flight))

        session._emit = note
        walked.follow()
        by_level = [len([r for r in walked.records if r.cell.level == n]) for n in (1, 3)]
    assert counts == [(by_level[0], 0), (by_level[1], 0)]


def test_a_backend_given_up_leaves_the_levels_of_the_others() -> None:
    with walk(FakeOpenAi(), FakeOpenAi()) as (walked, _):
        # a is measured first, then b at both levels, then a again
        walked.session.give_up("a", "gone")
        walked.follow()
    assert walked.seen("level_end") == ["b 8+4 c1", "b 8+4 c3"]
    skipped = [
        (e.cell.label, e.detail) for e in walked.events if e.kind == "level_skipped" and e.cell
    ]
    assert skipped == [("a 8+4 c1", {"reason": "gone"}), ("a 8+4 c3", {"reason": "gone"})]
    assert {record.cell.backend for record in walked.records} == {"b"}


def test_what_a_policy_skips_is_told_and_counted_as_planned() -> None:
    with walk(FakeOpenAi()) as (walked, _):
        cells = interleaved_cells([("a", "default")], (1.0, 2.0), 8, 4)
        walked = walked.again(MatrixLevels(cells, {cells[0]: "too long"}))
        walked.follow()
    assert walked.seen("level_end") == ["a 8+4 c2"]
    (skipped,) = [e for e in walked.events if e.kind == "level_skipped"]
    assert (skipped.cell, skipped.detail) == (cells[0], {"reason": "too long", "planned": True})


def test_some_clients_of_a_soak_leave_and_the_levels_rest() -> None:
    soak = Soak(cancel_share=0.5, rest_s=0.3, max_memory_growth_bytes=1.0, max_latency_growth=1.0)
    fake = FakeOpenAi()

    def paced(peer: Peer, request: Request) -> None:
        # an answer that came in one read could not be left
        peer.headers()
        for number in range(1, 9):
            usage = {"prompt_tokens": 8, "completion_tokens": number}
            last = "length" if number == 8 else None
            peer.chunk(text_chunk("x", usage=usage, finish_reason=last))
            time.sleep(0.003)
        peer.chunk(DONE)
        peer.end()

    fake.fault = paced
    with walk(fake, requests=20) as (walked, _):
        work = msgspec.structs.replace(walked.workload, soak=soak)
        cells = interleaved_cells([("a", "default")], (2.0,), 8, 8, repeats=2)
        walked = walked.again(FixedLevels(cells), work)
        walked.follow()
    outcomes = {record.outcome for record in walked.records}
    assert outcomes == {"ok", "cancelled"}
    (first, _), (_, second) = (
        [e.t_s for e in walked.events if e.kind == kind] for kind in ("level_end", "level_start")
    )
    assert second - first >= 0.3
    # nobody paused after leaving: half a second each would take ten
    assert all(r.error is None or "as it was to" in r.error for r in walked.records)
