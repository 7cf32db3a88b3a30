"""How an answer goes wrong in the middle."""

from __future__ import annotations

import random
from dataclasses import dataclass

from servers.simulated.connection import Connection, head
from servers.simulated.frames import error_body

ENGINE_FAILED = error_body("the engine failed (a planned fault)", "InternalServerError", 500)
_GARBAGE_BYTES = 256


@dataclass(frozen=True)
class Spoilt:
    """What could still be sent of an answer."""

    #: the body of an answer that is not streamed; None for a stream
    whole: bytes | None = None
    #: what a stream ends with when it tells of an error
    error: bytes = b""
    #: the connection can go on after it
    ends: bool = False


def strike(kind: str, connection: Connection, seed: str, left: Spoilt) -> None:
    """Let the fault happen, now; ``seed`` gives the bytes of ``garbage``."""
    link = connection.link
    if kind == "reset":
        link.reset()
    elif kind == "truncate":
        if left.whole is not None:
            fields = {"content-type": "application/json", "content-length": str(len(left.whole))}
            link.send(head(200, fields) + left.whole[: len(left.whole) // 2])
        link.close()
    elif kind == "garbage":
        draw = random.Random(seed)  # noqa: S311 - not for secrets
        link.send(draw.randbytes(_GARBAGE_BYTES))
        link.close()
    elif kind == "in-band-error":
        if left.whole is not None:
            connection.respond(200, ENGINE_FAILED)
        else:
            link.send(left.error)
            connection.done(close=not left.ends)
    # a stall sends nothing more and keeps the connection
