"""Closed loops whose requests differ, with users as greenlets and servers as threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gevent
import pytest

from harness.load.chat_walk import ChatSession
from harness.load.preflight import prepare
from harness.load.row_walk import RowSession
from harness.load.session import Session
from harness.load.settings import AskKind
from harness.manifest import BackendInfo
from harness.plan.levels import LevelPolicy, asked_cells
from harness.plan.row_levels import ConversationLevels, MixLevels, PrefixLevels
from harness.plan.traces import TraceRow
from harness.records import RequestRecord
from harness.workload import Conversations, SharedPrefix
from tests.load.test_ask_settings import settings
from tests.load.test_session import CLOCK, Walk
from tests.support.fake_openai import FakeOpenAi, serve
from tests.support.scripted_server import DONE, Peer, Request, ScriptedServer, sse, text_chunk

INFOS = [
    BackendInfo(name=name, url="http://x", kind="openai", mode="default", model="m")
    for name in "ab"
]
QUICK = {"min_level_seconds": "0", "levels": "2"}


@contextmanager
def walked(
    kind: AskKind,
    make_walk: type[Session],
    policy: LevelPolicy,
    fakes: Sequence[FakeOpenAi],
    **options: str,
) -> Iterator[tuple[Walk, list[ScriptedServer]]]:
    """The whole walk over servers named a, b, ... of which each is probed first."""
    servers = [serve(fake) for fake in fakes]
    for server in servers:
        server.__enter__()
    try:
        text = ",".join(f"{n}={s.url}" for n, s in zip("ab", servers, strict=False))
        asked = settings(kind, **{**QUICK, **options, "backends": text})
        backends = {a.name: prepare(a, asked, 7, CLOCK) for a in asked.backends}
        events, records = [], []  # type: ignore[var-annotated]
        session = make_walk(
            policy,
            asked.workload,
            backends,
            CLOCK,
            emit=events.append,
            record=records.append,
            back_off_s=0.01,
        )
        walk = Walk(session, events, records)
        walk.follow()
        yield walk, servers
        gevent.killall(walk.users)
    finally:
        for server in servers:
            server.kill()


def prompts(server: ScriptedServer) -> list[list[int]]:
    """All streamed prompts but the probe's, in the order in which they came."""
    streamed = [r.json for r in server.requests if r.body and r.json.get("stream")]
    found = [body["prompt"] for body in streamed]
    return [prompt for prompt in found if isinstance(prompt, list)][1:]


def by_seq(records: list[RequestRecord], backend: str) -> list[RequestRecord]:
    return sorted((r for r in records if r.cell.backend == backend), key=lambda r: r.seq)


def test_every_backend_is_asked_the_same_list() -> None:
    rows = [TraceRow(0.0, 20 + i, 2 + i % 3) for i in range(7)]
    work = settings("mix", context="64", levels="2").workload
    policy = MixLevels(asked_cells(work, INFOS), rows)
    with walked(
        "mix", RowSession, policy, [FakeOpenAi(), FakeOpenAi()], min_requests="9", context="64"
    ) as (walk, servers):
        for name in "ab":
            mine = by_seq(walk.records, name)
            wanted = [rows[i % 7] for i in range(len(mine))]
            assert [(r.asked_prompt_tokens, r.asked_output_tokens) for r in mine] == [
                (row.prompt_tokens, row.output_tokens) for row in wanted
            ]
            assert {r.outcome for r in mine} == {"ok"}
            assert {r.shared_tokens for r in mine} == {None}
        everything = [tuple(p) for server in servers for p in prompts(server)]
        # no two prompts begin alike
        assert len({p[:5] for p in everything}) == len(everything)


def test_a_share_begins_with_the_levels_own_system_prompt() -> None:
    asked = SharedPrefix(prefix_tokens=32, reuse=(0.0, 0.5))
    work = settings("prefix", levels="2", prefix_tokens="32", prompt_tokens="16").workload
    policy = PrefixLevels(asked_cells(work, INFOS[:1]), asked, 48, 3)
    with walked(
        "prefix",
        RowSession,
        policy,
        [FakeOpenAi()],
        min_requests="8",
        prefix_tokens="32",
        prompt_tokens="16",
        output_tokens="3",
    ) as (walk, servers):
        records = by_seq(walk.records, "a")
        assert {len(p) for p in prompts(servers[0])} == {48}
        plain = [r for r in records if r.cell.variant == "reuse 0"]
        mixed = [r for r in records if r.cell.variant == "reuse 0.5"]
        assert {r.shared_tokens for r in plain} == {0}
        # every second one
        assert [r.shared_tokens for r in mixed] == [0, 32] * (len(mixed) // 2) + [0] * (
            len(mixed) % 2
        )
        heads = [tuple(p[:32]) for p in prompts(servers[0])]
        shared = {head for head in heads if heads.count(head) > 1}
        assert len(shared) == 1
        assert heads.count(shared.pop()) == sum(r.shared_tokens == 32 for r in mixed)


def ids_answer(peer: Peer, request: Request) -> None:
    """An answer whose tokens have ids: 1000, 1001, ..."""
    asked, prompt = request.json["max_tokens"], request.json["prompt"]
    assert isinstance(asked, int)
    assert isinstance(prompt, list)
    peer.headers()
    for number in range(asked):
        last = "length" if number + 1 == asked else None
        peer.chunk(text_chunk("x", token_ids=[1000 + number], finish_reason=last))
    usage = {"prompt_tokens": len(prompt), "completion_tokens": asked}
    peer.chunk(sse({"choices": [], "usage": usage}) + DONE)
    peer.end()


TALK = Conversations(system_tokens=10, turns=3, user_tokens=12, think_s=0.0)
TALK_OPTIONS = {
    **{"system_tokens": "10", "turns": "3", "user_tokens": "12", "think_time": "0"},
    **{"output_tokens": "4", "min_requests": "9"},
}


def talks(
    fake: FakeOpenAi, asked: Conversations = TALK
) -> tuple[list[RequestRecord], list[list[int]]]:
    options = {**TALK_OPTIONS, "think_time": f"{asked.think_s:g}"}
    work = settings("chat", levels="2", **options).workload
    policy = ConversationLevels(asked_cells(work, INFOS[:1]), asked, 4, seed=0)
    with walked("chat", ChatSession, policy, [fake], **options) as (walk, servers):
        return by_seq(walk.records, "a"), prompts(servers[0])


def test_a_history_has_the_servers_own_answers() -> None:
    """10 + 12 tokens; then the answer's 4 and 12 more: 38; then 54. What the server knows of
    turn 2 are the 22 of turn 1 and 3 of its 4 tokens.
    """
    records, said = talks(FakeOpenAi(fault=ids_answer))
    assert {r.outcome for r in records} == {"ok"}
    assert {r.token_source for r in records} == {"token_ids"}
    sizes = {1: (22, 10), 2: (38, 25), 3: (54, 41)}
    for record in records:
        assert record.turn is not None
        assert (record.asked_prompt_tokens, record.shared_tokens) == sizes[record.turn]
    by_length = {n: [p for p in said if len(p) == n] for n in (22, 38, 54)}
    assert all(p[22:26] == [1000, 1001, 1002, 1003] for p in by_length[38])
    # each later turn begins with an earlier one's whole prompt
    for shorter, longer in ((22, 38), (38, 54)):
        starts = [p for p in by_length[shorter]]
        assert all(p[:shorter] in starts for p in by_length[longer])
    # all conversations share the system prompt, and nothing else
    firsts = [tuple(p) for p in by_length[22]]
    assert len({p[:10] for p in firsts}) == 1
    assert len({p[10:15] for p in firsts}) == len(firsts)


def test_a_conversation_ends_with_its_last_turn() -> None:
    records, _ = talks(FakeOpenAi(fault=ids_answer))
    for conversation in {r.conversation for r in records}:
        turns = [r.turn for r in records if r.conversation == conversation]
        assert turns == list(range(1, len(turns) + 1))
        assert len(turns) <= 3
    found = {r.conversation for r in records}
    assert found == set(range(1, len(found) + 1))


def test_without_ids_made_up_words_stand_for_the_answer() -> None:
    """The server has seen the last prompt, and not these words."""
    records, _ = talks(FakeOpenAi())
    sizes = {1: (22, 10), 2: (38, 22), 3: (54, 38)}
    for record in records:
        assert record.turn is not None
        assert (record.asked_prompt_tokens, record.shared_tokens) == sizes[record.turn]


def test_a_user_thinks_between_turns() -> None:
    records, _ = talks(FakeOpenAi(fault=ids_answer), replace_think(TALK, 0.02))
    work = settings("chat", levels="2", **{**TALK_OPTIONS, "think_time": "0.02"}).workload
    policy = ConversationLevels(asked_cells(work, INFOS[:1]), replace_think(TALK, 0.02), 4, seed=0)
    thought = 0
    for a in records:
        for b in records:
            if a.turn is None or b.turn is None or b.t_sent_s is None:
                continue
            if a.conversation == b.conversation and b.turn == a.turn + 1:
                think_s = policy.think_s(a.cell, a.conversation or 0, a.turn)
                # on time by its own plan: late only by what the record says
                assert b.t_intended_s == pytest.approx(a.t_end_s + think_s, abs=1e-6)
                assert b.t_sent_s >= b.t_intended_s
                thought += 1
    assert thought >= 3


def replace_think(asked: Conversations, think_s: float) -> Conversations:
    return Conversations(
        system_tokens=asked.system_tokens,
        turns=asked.turns,
        user_tokens=asked.user_tokens,
        think_s=think_s,
    )


def refuse(peer: Peer, request: Request) -> None:
    peer.reply(503, {"error": "full"})


def test_a_failed_turn_ends_its_conversation() -> None:
    records, _ = talks(FakeOpenAi(fault=refuse))
    assert {r.outcome for r in records} == {"rejected"}
    assert {r.turn for r in records} == {1}


def test_another_policy_is_refused() -> None:
    work = settings("mix", context="64", levels="2").workload
    policy = MixLevels(asked_cells(work, INFOS), [TraceRow(0.0, 2, 1)])
    nothing = {"emit": lambda event: None, "record": lambda record: None}
    with pytest.raises(TypeError, match="ConversationLevels"):
        ChatSession(policy, work, {}, CLOCK, **nothing)
    chat = ConversationLevels((), TALK, 4, seed=0)
    with pytest.raises(TypeError, match="RowLevels"):
        RowSession(chat, work, {}, CLOCK, **nothing)
