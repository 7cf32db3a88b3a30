"""An answer of three tokens."""

from __future__ import annotations

from tests.load.stream_builder import usage_frame
from tests.support.scripted_server import DONE, Peer, Request, text_chunk

X = text_chunk("x")
LAST = text_chunk("", finish_reason="length")
THREE = (X, X, X, LAST, usage_frame(3, 4), DONE)


def answer_three(peer: Peer, request: Request) -> None:
    peer.stream(*THREE)
