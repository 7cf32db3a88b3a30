"""A paged pool whose blocks are shared by several groups of layers.

Models with sliding windows or states beside full attention have several groups, and each
takes blocks of its own for the same tokens. How many is in the model's config, not in the
metrics; but the tokens that the server states for its pool are then not
num_blocks x block_size, which tells such a pool apart (``harness.kv.capacity.is_one_group``).
"""

from __future__ import annotations

import math

import numpy as np

from harness.analysis.table import Floats
from harness.kv.capacity import ceil_div, is_one_group
from harness.observe.series import KvPool


def several_groups(pool: KvPool | None, max_model_len: int | None) -> bool:
    """Whether a pool is known to be of several groups; False when it states too little."""
    if pool is None or not (pool.num_blocks and pool.block_size and pool.size_tokens):
        return False
    return not is_one_group(
        num_blocks=pool.num_blocks,
        block_size=pool.block_size,
        stated_tokens=pool.size_tokens,
        max_model_len=max_model_len,
        engines=pool.engines,
    )


def no_prediction(pool: KvPool | None, max_model_len: int | None) -> str | None:
    """Why the arithmetic of one group must not be used; None when it may."""
    if pool is None or not several_groups(pool, max_model_len):
        return None
    blocks, size, tokens = pool.num_blocks or 0, pool.block_size or 0, pool.size_tokens or 0
    return (
        f"the server states {tokens:,} tokens for a pool of {blocks:,} x {size:,} = "
        f"{blocks * size:,}: several groups of layers share it, and its metrics do not say how "
        "many blocks a request takes of each (kvknee plan MODEL works it out from the config)"
    )


def blocks_for_prompt(
    pool: KvPool,
    prompt_tokens: int,
    output_tokens: int,
    used_blocks: Floats,
    running: Floats | None,
) -> Floats:
    """Blocks that the next prompt needs in a pool of several groups, at each sample, shape [n].

    An estimate from below, the larger of two:

    - what the server states: ceil(ceil(prompt / block size) x num_blocks x block_size /
      stated tokens). The quotient is what a token of a request of max_model_len costs,
      when groups with a window have long let go of the tokens before it;
    - what the samples show: the blocks that a running request holds on average, times
      ceil(prompt / block size) / ceil((prompt + output) / block size), since a running
      request holds at most its prompt and its whole output.
    """
    size = pool.block_size or 1
    own = ceil_div(prompt_tokens, size)
    quotient = (pool.num_blocks or 0) * size / (pool.size_tokens or 1)
    stated = np.full(used_blocks.shape, float(math.ceil(own * quotient)))
    if running is None:
        return stated
    share = own / max(1, ceil_div(prompt_tokens + output_tokens, size))
    seen = np.full(used_blocks.shape, np.nan)
    np.divide(used_blocks, running, out=seen, where=running >= 1)
    return np.asarray(np.fmax(stated, np.ceil(seen * share)), dtype=np.float64)


def pool_bytes_per_token(pool: KvPool | None, max_model_len: int | None) -> float | None:
    """The server's byte budget over the tokens that fit in it.

    Those are the tokens that the server states. For a pool of one group they are its blocks
    x tokens per block, and that product is used: the stated figure may leave out what the
    last block of a request of max_model_len lacks.
    """
    if pool is None or pool.total_bytes is None:
        return None
    if pool.num_blocks and pool.block_size and not several_groups(pool, max_model_len):
        return pool.total_bytes / (pool.num_blocks * pool.block_size)
    return pool.total_bytes / pool.size_tokens if pool.size_tokens else None
