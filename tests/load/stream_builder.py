"""Short ways to write streams in tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.load.answer import Answer, read_answer
from harness.load.reads import TIMESPEC
from harness.load.sse import parse_events
from harness.load.timeline import Arrivals, Timeline, build_timeline
from tests.support.scripted_server import sse


def answer_of(*events: bytes) -> Answer:
    """The answer of events that each came with a read of their own."""
    return read_answer(parse_events(list(enumerate(events))))


def timeline_of(times_s: Sequence[float], *events: bytes) -> tuple[Answer, Timeline]:
    """The same with the time of each read; sent at 0."""
    answer = answer_of(*events)
    arrived = Arrivals(tuple(times_s), (True,) * len(times_s))
    return answer, build_timeline(answer, arrived, 0.0)


def chat_delta(**delta: object) -> bytes:
    """A chat chunk with that delta."""
    return sse({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def stamp_of(wall_s: float) -> bytes:
    """The kernel's receive stamp of that time."""
    seconds = math.floor(wall_s)
    return TIMESPEC.pack(seconds, round((wall_s - seconds) * 1e9))


def usage_frame(tokens: int, prompt_tokens: int = 3) -> bytes:
    """The last frame of a stream with ``include_usage``."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    return sse({"choices": [], "usage": usage})
