"""How many requests a known pool or budget holds at once, with each step as an equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.kv.modes import CacheMode, read_mode
from harness.kv.reserve import Reserve, reserved_tokens

if TYPE_CHECKING:
    from harness.manifest import BackendInfo


@dataclass(frozen=True)
class Capacity:
    """Requests that fit at once, whatever order they come in."""

    requests: int
    #: each step as an equation with its numbers and units
    derivation: tuple[str, ...]


def ceil_div(amount: int, size: int) -> int:
    """The smallest whole number of ``size`` that covers ``amount``."""
    return -(-amount // size)


def paged_capacity(
    *,
    num_blocks: int,
    block_size: int,
    prompt_tokens: int,
    output_tokens: int,
    max_num_seqs: int | None = None,
) -> Capacity:
    """Requests that a block pool holds to their last token without preemption.

    One block of vLLM's pool is a placeholder (the null block) that no request gets. The
    last output token is counted although its K and V are never written: the figure is
    safe by at most one block per request.
    """
    usable = max(0, num_blocks - 1)
    tokens = prompt_tokens + output_tokens
    each = max(1, ceil_div(tokens, block_size))
    fit = usable // each
    steps = (
        f"usable blocks = {num_blocks:,} - 1 null block = {usable:,}",
        f"blocks per request = ceil(({prompt_tokens:,} + {output_tokens:,}) tokens / "
        f"{block_size} tokens per block) = {each:,}",
        f"requests = floor({usable:,} / {each:,}) = {fit:,}",
    )
    return _limited(fit, steps, max_num_seqs)


def static_capacity(
    *,
    kv_budget_bytes: int,
    bytes_per_token: int,
    max_model_len: int,
    max_num_seqs: int | None = None,
) -> Capacity:
    """Slots of ``max_model_len`` tokens that a budget pays for, however short the requests."""
    slot = bytes_per_token * max_model_len
    fit = kv_budget_bytes // slot
    steps = (
        f"bytes per slot = {max_model_len:,} tokens x {bytes_per_token:,} B = {slot:,} B",
        f"slots = floor({kv_budget_bytes:,} B / {slot:,} B) = {fit:,}",
    )
    return _limited(fit, steps, max_num_seqs)


def region_capacity(
    *,
    reserve: Reserve,
    kv_budget_bytes: int,
    bytes_per_token: int,
    prompt_tokens: int,
    output_tokens: int,
    max_model_len: int,
    max_num_seqs: int | None = None,
) -> Capacity:
    """Requests whose regions lie in an arena of the budget's size.

    Regions of one length leave no gaps between them; requests of several lengths fragment
    the arena, and then fewer fit.
    """
    tokens = prompt_tokens + output_tokens
    region = reserved_tokens(reserve, tokens, max_model_len)
    arena = kv_budget_bytes // bytes_per_token
    fit = arena // region
    shape = f"{prompt_tokens:,} + {output_tokens:,}"
    if reserve == "pow2":
        shape = f"the next power of two of {shape}, at most {max_model_len:,}"
    steps = (
        f"arena = floor({kv_budget_bytes:,} B / {bytes_per_token:,} B per token) = "
        f"{arena:,} tokens",
        f"region per request = {shape} = {region:,} tokens",
        f"requests = floor({arena:,} / {region:,}) = {fit:,}",
    )
    return _limited(fit, steps, max_num_seqs)


def dynamic_capacity(
    *,
    kv_budget_bytes: int,
    bytes_per_token: int,
    prompt_tokens: int,
    output_tokens: int,
    max_num_seqs: int | None = None,
) -> Capacity:
    """Requests whose promised tokens (prompt + max_tokens) a budget pays for."""
    promised = (prompt_tokens + output_tokens) * bytes_per_token
    fit = kv_budget_bytes // promised
    steps = (
        f"bytes promised per request = ({prompt_tokens:,} + {output_tokens:,}) tokens x "
        f"{bytes_per_token:,} B = {promised:,} B",
        f"requests = floor({kv_budget_bytes:,} B / {promised:,} B) = {fit:,}",
    )
    return _limited(fit, steps, max_num_seqs)


def is_one_group(
    *,
    num_blocks: int,
    block_size: int,
    stated_tokens: int,
    max_model_len: int | None,
    engines: int = 1,
) -> bool:
    """Whether a paged pool belongs to one group of layers, which all keep every token.

    vLLM states a pool's size as max_model_len x num_blocks / (blocks that a request of
    max_model_len takes), cut to whole tokens per engine
    (``vllm.v1.core.kv_cache_utils.get_max_concurrency_for_kv_cache_config``). One group
    takes ceil(max_model_len / block_size) blocks, so it states num_blocks x block_size, or
    a little less when its last block is not full; versions before that state the former
    always. Any other figure means windows, states or several groups in one pool.
    ``num_blocks`` and ``stated_tokens`` are sums over ``engines``.
    """
    whole = num_blocks * block_size
    plain = [float(whole)]
    if max_model_len:
        plain.append(num_blocks * max_model_len / ceil_div(max_model_len, block_size))
    return any(abs(stated_tokens - tokens) <= engines for tokens in plain)


def predicted_capacity(
    info: BackendInfo, prompt_tokens: int, output_tokens: int
) -> Capacity | None:
    """The capacity that a backend's own facts imply; None when a fact is missing.

    A paged pool is taken for that of one group (``is_one_group``): a caller that knows
    better must not ask.
    """
    tokens = prompt_tokens + output_tokens
    if info.max_model_len is not None and tokens > info.max_model_len:
        step = f"{tokens:,} tokens per request > max_model_len {info.max_model_len:,}: none fits"
        return Capacity(0, (step,))
    if info.kind == "vllm":
        return _paged(info, prompt_tokens, output_tokens)
    mode = read_mode(info.mode) if info.kind == "contiguous" else None
    capacity = _contiguous(info, mode, prompt_tokens, output_tokens) if mode is not None else None
    if capacity is None or mode is None or mode.batching != "none":
        return capacity
    step = f"batching none: min({capacity.requests:,}, 1 at a time) = {min(capacity.requests, 1)}"
    return Capacity(min(capacity.requests, 1), (*capacity.derivation, step))


def _contiguous(
    info: BackendInfo, mode: CacheMode, prompt_tokens: int, output_tokens: int
) -> Capacity | None:
    """Of a static batch too: its rows are equally long here, and max_num_seqs is its size."""
    if info.kv_budget_bytes is None or not info.kv_bytes_per_token:
        return None
    if mode.cache == "static" and info.max_model_len is not None:
        if mode.reserve == "max":
            return static_capacity(
                kv_budget_bytes=info.kv_budget_bytes,
                bytes_per_token=info.kv_bytes_per_token,
                max_model_len=info.max_model_len,
                max_num_seqs=info.max_num_seqs,
            )
        return region_capacity(
            reserve=mode.reserve,
            kv_budget_bytes=info.kv_budget_bytes,
            bytes_per_token=info.kv_bytes_per_token,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_model_len=info.max_model_len,
            max_num_seqs=info.max_num_seqs,
        )
    if mode.cache == "dynamic":
        return dynamic_capacity(
            kv_budget_bytes=info.kv_budget_bytes,
            bytes_per_token=info.kv_bytes_per_token,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_num_seqs=info.max_num_seqs,
        )
    return None


def _paged(info: BackendInfo, prompt_tokens: int, output_tokens: int) -> Capacity | None:
    if info.num_blocks is None or info.block_size is None:
        return None
    return paged_capacity(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_num_seqs=info.max_num_seqs,
    )


def _limited(fit: int, steps: tuple[str, ...], max_num_seqs: int | None) -> Capacity:
    """Apply the scheduler's own limit, as a step of its own when it is the lower one."""
    if max_num_seqs is None or fit <= max_num_seqs:
        return Capacity(fit, steps)
    step = f"requests = min({fit:,}, max_num_seqs {max_num_seqs:,}) = {max_num_seqs:,}"
    return Capacity(max_num_seqs, (*steps, step))
