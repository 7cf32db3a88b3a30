"""A closed loop of conversations: each user talks in turns and thinks in between.

Every turn sends all that was said before: the system prompt, the user's words and the
server's answers, as token ids. Where a server states the ids of its tokens, the history has
its own answer, as a chat client sends it back; else made-up words of the same length stand
for it, and the server can find no more than the last prompt in its prefix cache. Which of
the two it was is said by a record's ``token_source``, and by its ``shared_tokens``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from harness.load.crew import Crew, CrewLevel, Member, Turn, Words
from harness.load.exchange import Ended
from harness.load.row_walk import CellPrompts
from harness.load.session import Session
from harness.load.sse import parse_columns
from harness.plan.levels import LevelPolicy
from harness.plan.row_levels import SYSTEM_BLOCK, ConversationLevels, prompt_at
from harness.plan.traces import TraceRow
from harness.records import CellKey


class ChatSession(Session):
    """The walk; its policy is a ConversationLevels."""

    def _make_crew(self, policy: LevelPolicy) -> Callable[..., Crew]:
        if not isinstance(policy, ConversationLevels):
            raise TypeError("conversations need the policy ConversationLevels")
        return partial(ChatCrew, policy)


@dataclass
class Talk:
    """One conversation."""

    cell: CellKey
    number: int
    #: all that was said, the last answer included
    said: tuple[int, ...]
    #: leading tokens of ``said`` that the server has seen, or generated
    known: int
    #: turns taken
    turn: int = 0
    #: the prompt of the turn in progress, and what stands for its answer
    prompt: tuple[int, ...] = ()
    made_up: tuple[int, ...] = ()


@dataclass
class Talker(Member):
    """A user and its conversation."""

    talk: Talk | None = field(default=None)
    #: when it has thought enough
    due_s: float = 0.0


class ChatCrew(Crew):
    """Users that hold conversations."""

    def __init__(self, policy: ConversationLevels, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._policy = policy
        asked = policy.asked
        longest = prompt_at(asked, policy.output_tokens, asked.turns)
        self._cell_prompts = CellPrompts(
            policy.cells, self._backends, longest, max(1, asked.system_tokens)
        )
        self._begun: Counter[CellKey] = Counter()

    def _new_member(self) -> Member:
        return Talker()

    def _await_turn(self, member: Member) -> CrewLevel | None:
        """The turn, once the user has thought; another level begins without that."""
        level = super()._await_turn(member)
        talker = _talker(member)
        while level is not None and talker.talk is not None and talker.talk.cell == level.cell:
            left_s = talker.due_s - self._clock.monotonic()
            if left_s <= 0:
                # late from here on, if at all
                member.free_s = talker.due_s
                break
            self._news.wait(left_s)
            level = super()._await_turn(member)
        return level

    def _words(self, cell: CellKey, member: Member, number: int) -> Words:
        talker, asked = _talker(member), self._policy.asked
        talk = talker.talk
        if talk is None or talk.cell != cell or talk.turn >= asked.turns:
            talk = talker.talk = self._new_talk(cell, number)
        prompts, answer = self._cell_prompts.of(cell), self._policy.output_tokens
        own = prompts.prompt(number, TraceRow(0.0, asked.user_tokens + answer, answer))
        talk.turn += 1
        talk.prompt = (*talk.said, *own[: asked.user_tokens])
        talk.made_up = own[asked.user_tokens :]
        return Words(talk.prompt, len(talk.prompt), answer, talk.known, talk.number, talk.turn)

    def _new_talk(self, cell: CellKey, number: int) -> Talk:
        self._begun[cell] += 1
        tokens = self._policy.asked.system_tokens
        row = TraceRow(0.0, tokens, 1, (SYSTEM_BLOCK,))
        system = self._cell_prompts.of(cell).prompt(number, row) if tokens else ()
        return Talk(cell, self._begun[cell], system, tokens)

    def _ended(self, turn: Turn, over: Ended) -> None:
        super()._ended(turn, over)
        talker = _talker(turn.member)
        talk = talker.talk
        if talk is None:
            return
        if not over.answered:
            # what the server knows of it is not certain any more
            talker.talk = None
            return
        spoken = answer_ids(over)
        known = len(talk.prompt)
        if len(spoken) == len(talk.made_up):
            # the last token's K and V are not in the cache: nothing came after it
            known += len(spoken) - 1
        else:
            spoken = talk.made_up
        talk.said, talk.known = (*talk.prompt, *spoken), known
        talker.due_s = over.t_end_s + self._policy.think_s(talk.cell, talk.number, talk.turn)


def _talker(member: Member) -> Talker:
    if not isinstance(member, Talker):
        raise TypeError("a user without a conversation")
    return member


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None


class _IdsChunk(msgspec.Struct):
    choices: list[_Choice] = []


_DECODER = msgspec.json.Decoder(_IdsChunk)


def answer_ids(over: Ended) -> tuple[int, ...]:
    """The ids of an answer's tokens; empty where the server does not state them.

    Read while the user thinks, apart from the record: few requests, long pauses.
    """
    found: list[int] = []
    response = over.exchange.response
    for data in parse_columns(response.piece_reads, response.pieces).data:
        try:
            chunk = _DECODER.decode(data)
        except msgspec.MsgspecError:
            # [DONE], and whatever else is no chunk of an answer
            continue
        for choice in chunk.choices[:1]:
            found += choice.token_ids or []
    return tuple(found)
