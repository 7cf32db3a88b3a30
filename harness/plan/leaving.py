"""Which clients of a soak leave before their answer's end, and when. Pure, seeded."""

from __future__ import annotations

import random


def leave_after(share: float, output_tokens: int, seed: str) -> int | None:
    """After how many reads of its answer a client leaves; None: it stays.

    ``share`` of the clients leave, each at a place drawn evenly from the first read to the
    last but one; an answer of one token is too short to be left. ``seed`` names the request.
    """
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    if output_tokens < 2 or draw.random() >= share:
        return None
    return draw.randint(1, output_tokens - 1)
