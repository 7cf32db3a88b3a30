"""Which clients of a soak leave before their answer's end, and when. Pure, seeded."""

from __future__ import annotations

import random

_LEAST_TOKENS = 3


def leave_after(share: float, output_tokens: int, seed: str) -> int | None:
    """After how many reads of its answer a client leaves; None: it stays.

    ``share`` of the clients leave, each at a place drawn evenly: after the second read at the
    earliest, for the first may hold the headers alone, and before the last token. An answer
    of fewer than three tokens is too short to be left. ``seed`` names the request.
    """
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    if output_tokens < _LEAST_TOKENS or draw.random() >= share:
        return None
    return draw.randint(2, output_tokens - 1)
