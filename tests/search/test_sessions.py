"""Closed and open loops of a search: levels as they are decided, verdicts, restarts, the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import gevent
import msgspec
import pytest

from harness.load.clock import SystemClock
from harness.load.preflight import PreparedBackend, prepare
from harness.manifest import BackendInfo
from harness.plan.search_events import read_found
from harness.plan.search_types import Decision, Found, LevelVerdict, SearchGoal, SoFar
from harness.records import CellKey, LevelSummary, RequestRecord, RunEvent
from harness.search.open_session import OpenKneeLevels, OpenKneeWalk
from harness.search.policy import KneePolicy, Verdicts
from harness.search.session import KneeSession, SearchParts
from harness.search.watch import LevelWatch
from harness.workload import KneeAsk, OpenLoop, Slo, Workload
from tests.load.test_open_walk import backend, workload
from tests.load.test_settings import settings
from tests.search.test_policy import verdict
from tests.support.fake_openai import FakeOpenAi, serve
from tests.support.scripted_server import PATIENCE_S
from tests.support.virtual_time import TimedClient, VirtualTime

CLOCK = SystemClock()


class Listed:
    """Asks for levels in turn; two requests at once are held."""

    def __init__(
        self, levels: Sequence[float], mode: str, backends: Sequence[str] = ("a",)
    ) -> None:
        self._backends = backends
        self._cells = [CellKey(name, mode, 8, 4, level) for level in levels for name in backends]

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        left = self._cells[len(done) :]
        return left[0] if left else None

    def has_time(self, done: Sequence[LevelSummary]) -> bool:
        return True

    def goal_of(self, backend: str, done: Sequence[LevelSummary]) -> SearchGoal | None:
        return "capacity" if self._cells[len(done) :] else None

    def found(self, done: Sequence[LevelSummary]) -> tuple[Found, ...]:
        status = "found" if len(done) == len(self._cells) else "budget"
        return tuple(
            Found(name, "capacity", status, 2.0, 3.0, 2.0, 2.0, "kv_memory")  # type: ignore[arg-type]
            for name in self._backends
        )


class Judging:
    """A judge without a run directory: more than two is bad."""

    def __init__(self) -> None:
        self.begun = 0

    def level_begins(self) -> None:
        self.begun += 1

    def verdicts(self, cell: CellKey) -> tuple[LevelVerdict, ...]:
        return (verdict(cell.level, "good" if cell.level <= 2 else "bad"),)


@dataclass
class Told:
    """What a search wrote, asked for and restarted."""

    restart: Callable[[str, int], None]
    events: list[RunEvent] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    asked: list[SoFar] = field(default_factory=list)
    judging: Judging = field(default_factory=Judging)
    left_s: Callable[[], float | None] = lambda: None

    def parts(self, info: BackendInfo, least: int, **watch: object) -> SearchParts:
        """Levels end when so many requests were counted."""

        def rule(cell: CellKey, goals: tuple[SearchGoal, ...]) -> Callable[[SoFar], Decision]:
            assert goals == ("capacity",)

            def decide(so_far: SoFar) -> Decision:
                self.asked.append(so_far)
                return "enough" if so_far.ok >= least else "go_on"

            return decide

        return SearchParts(
            judge=self.judging,  # type: ignore[arg-type]
            watch=lambda cell: LevelWatch(info, cell, Slo(), None, **watch),  # type: ignore[arg-type]
            rule=rule,
            restart=self.restart,
            predicted={"a": 2},
            start_command=lambda backend: "kvknee up --max-num-seqs 7",
            left_s=self.left_s,
        )

    def of(self, kind: str) -> list[RunEvent]:
        return [event for event in self.events if event.kind == kind]

    def cells(self, kind: str) -> list[str]:
        return [event.cell.label for event in self.of(kind) if event.cell is not None]


def no_restart(backend: str, level: int) -> None:
    raise AssertionError("nothing is ours")


@contextmanager
def session(
    told: Told,
    levels: Sequence[float],
    restartable: tuple[str, ...] = (),
    names: tuple[str, ...] = ("a",),
) -> Iterator[KneeSession]:
    """Of one server, under each of the names."""
    with serve(FakeOpenAi()) as server:
        options = settings(
            backends=",".join(f"{name}={server.url}" for name in names),
            prompt_tokens="8",
            output_tokens="4",
            min_requests="4",
        )
        found = {spec.name: prepare(spec, options, 7, CLOCK) for spec in options.backends}
        prepared = found["a"]
        mode = prepared.info.mode
        listed = Listed(levels, mode, names)
        policy = KneePolicy(listed, Verdicts(), dict.fromkeys(names, mode), (8, 4), restartable)
        work = msgspec.structs.replace(options.workload, search=KneeAsk(attainment=0.95))
        yield KneeSession(
            policy,
            work,
            found,
            CLOCK,
            parts=told.parts(prepared.info, least=6),
            emit=told.events.append,
            record=told.records.append,
            worker="local",
        )


def come(walk: KneeSession) -> None:
    member = walk.join()
    try:
        while walk.request(member):
            pass
    finally:
        walk.leave(member)


def follow(walk: KneeSession, until: Callable[[], bool] = lambda: False) -> None:
    """Bring the users that each level wants until all is done, or until then."""
    users: list[gevent.Greenlet[..., None]] = []
    with gevent.Timeout(PATIENCE_S):
        while (wanted := walk.wanted_users) is not None and not until():
            users = [user for user in users if not user.dead]
            users += [gevent.spawn(come, walk) for _ in range(wanted - len(users))]
            gevent.sleep(0.005)
            walk.tick()
        if until():
            walk.abort("interrupted")
        gevent.joinall(users)


def test_each_level_is_judged_before_the_next_is_asked_for() -> None:
    told = Told(no_restart)
    with session(told, [2, 3]) as walk:
        follow(walk)
    assert told.cells("level_start") == ["a 8+4 c2", "a 8+4 c3"]
    kinds = [e.kind for e in told.events]
    # of each level: its end, its verdict, and only then the next
    assert kinds.index("level_verdict") < kinds.index("search_next", 1)
    states = [event.detail["state"] for event in told.of("level_verdict")]
    assert states == ["good", "bad"]
    assert [e.detail["reason"] for e in told.of("level_end")] == ["complete", "complete"]
    (found,) = read_found(told.events)
    assert (found.last_good, [v.level for v in found.levels]) == (2.0, [2.0, 3.0])
    assert told.of("search_next")[1].detail["why"] == (
        "next a 8+4 c3: predicted 2; capacity good up to 2"
    )
    # counted are the requests sent since the window opened, all of them good
    assert max(so_far.ok for so_far in told.asked) >= 6
    assert {so_far.failed for so_far in told.asked} == {0}
    assert told.judging.begun == 2
    assert {record.outcome for record in told.records} == {"ok"}


def test_a_search_that_is_cut_short_tells_what_it_has() -> None:
    told = Told(no_restart)
    with session(told, [2, 3, 4]) as walk:
        follow(walk, until=lambda: len(told.of("level_start")) == 2)
    (found,) = read_found(told.events)
    assert found.status == "budget"
    assert [v.level for v in found.levels] == [2.0]
    assert told.of("level_end")[-1].detail["reason"] == "interrupted"
    # what would have come next nobody knows
    assert told.of("level_skipped") == []


def test_a_level_lasts_no_longer_than_the_whole_search() -> None:
    """Also the first one: nobody knows yet how long a level takes."""
    told = Told(no_restart, left_s=lambda: 0.0)
    with session(told, [2]) as walk:
        follow(walk)
    assert [event.detail["reason"] for event in told.of("level_end")] == ["time_limit"]
    rates = Told(no_restart, left_s=lambda: 0.0)
    open_walk(rates, lambda _: 0.1)
    assert {event.detail["reason"] for event in rates.of("level_end")} == {"time_limit"}
    # at the first look after its warm-up of 2 s
    assert rates.of("window_close")[0].t_s - rates.of("level_start")[0].t_s < 3.0


def open_walk(told: Told, service_s: Callable[[int], float]) -> None:
    """Rates 1, 2 and 3 a second in virtual time."""
    time = VirtualTime()
    work: Workload = msgspec.structs.replace(
        workload((8.0,), 1, warmup_s=2.0),
        max_level_s=60.0,
        output_tokens=1,
        search=KneeAsk(attainment=0.95),
        open_loop=OpenLoop(burstiness=None, warmup_s=2.0),
    )
    prepared: PreparedBackend = backend()
    mode = prepared.info.mode
    policy = KneePolicy(Listed([1, 2, 3], mode), Verdicts(), {"a": mode}, (8, 4))
    walk = OpenKneeWalk(
        OpenKneeLevels(policy, work),
        work,
        {"a": prepared},
        time,
        parts=told.parts(prepared.info, least=6, loop="open"),
        emit=told.events.append,
        record=told.records.append,
        worker="local",
        make_client=lambda *_: TimedClient(time, service_s),  # type: ignore[arg-type, return-value]
        wait=time.wait,
    )

    def ticks() -> None:
        while not walk.finished:
            time.sleep(0.25)
            walk.tick()

    def user() -> None:
        walk.join()
        while walk.request(None):
            pass

    ticking = gevent.spawn(ticks)
    time.run(gevent.spawn(user))
    ticking.kill()


def test_a_window_of_an_open_loop_closes_when_its_rate_is_decided() -> None:
    told = Told(no_restart)
    open_walk(told, lambda _: 0.1)
    assert told.cells("level_start") == ["a 8+4 c1", "a 8+4 c2", "a 8+4 c3"]
    # one a second from 1 s on: six that are due in the window, from 2 s on, are answered at 7.1 s
    starts = [event.t_s for event in told.of("level_start")]
    closes = [event.t_s for event in told.of("window_close")]
    assert closes[0] - starts[0] == pytest.approx(7.25)
    # twice as fast: 2.0, 2.5, ... 4.5, answered at 4.6 s
    assert closes[1] - starts[1] == pytest.approx(4.75)
    assert {event.detail["reason"] for event in told.of("level_end")} == {"complete"}
    assert [e.detail["state"] for e in told.of("level_verdict")] == ["good", "good", "bad"]
    # prompts of different rates differ
    hashes = [record.prompt_hash for record in told.records]
    assert len(set(hashes)) == len(hashes)
    (found,) = read_found(told.events)
    assert [v.level for v in found.levels] == [1.0, 2.0, 3.0]


def test_a_rate_that_is_never_decided_ends_with_its_time() -> None:
    told = Told(no_restart)
    # each takes longer than its level has
    open_walk(told, lambda seq: 100.0)
    assert {event.detail["reason"] for event in told.of("window_close")} == {"time_limit"}


def test_the_events_need_no_memory_of_the_search() -> None:
    """A search's decisions are read back from its events alone."""
    told = Told(no_restart)
    with session(told, [2, 3]) as walk:
        follow(walk)
    wire = [msgspec.json.decode(msgspec.json.encode(e), type=RunEvent) for e in told.events]
    assert read_found(wire) == read_found(told.events)
