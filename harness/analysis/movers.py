"""What would move a memory knee: the prediction again, with one thing changed.

Each line holds the server's own figures (its pool, its blocks, its device) and changes one of
them. What a figure is missing for is absent, with the reason: nothing is assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from harness.analysis.forecast_types import Fits, Mover
from harness.analysis.reconcile_theory import KvTheory
from harness.kv.bytes import kv_bytes_per_token
from harness.kv.dtypes import PLAIN_BITS
from harness.kv.forecast import LengthCounts, predict
from harness.manifest import BackendInfo
from harness.observe.series import KvPool

FP8_BITS = 8
UTILIZATION = 0.95


@dataclass(frozen=True)
class Situation:
    """A server and what it was asked, as far as the run knows them."""

    info: BackendInfo
    lengths: LengthCounts
    #: which prediction is held against the measurement
    fits: Fits
    pool: KvPool | None = None
    theory: KvTheory | None = None
    #: memory of one of its GPUs; None: not on record, or there is none
    device_bytes: int | None = None

    def requests(self, info: BackendInfo | None = None, lengths: LengthCounts | None = None) -> int:
        """The prediction with what is given in place of its own; 0 where nothing fits."""
        found = predict(info or self.info, lengths or self.lengths)
        if found is None:
            return 0
        return (found.worst if self.fits == "worst" else found.steady).requests


def movers(now: Situation) -> tuple[Mover, ...]:
    """fp8 KV, half the output, utilization 0.95, two tensor-parallel ranks; in this order."""
    old = now.requests()
    changes: tuple[tuple[str, Callable[[Situation], tuple[int | None, str]]], ...] = (
        ("KV cache in fp8", _fp8),
        ("half the output length", _half_output),
        (f"GPU memory utilization {UTILIZATION}", _utilization),
        ("tensor parallel 2", _two_ranks),
    )
    return tuple(Mover(name, old, *of(now)) for name, of in changes)


def _fp8(now: Situation) -> tuple[int | None, str]:
    info = now.info
    if info.kind != "vllm":
        return None, "this server has no fp8 cache; its quantized one also keeps scales and a tail"
    kv_dtype = now.pool.dtype if now.pool is not None else None
    name = info.dtype if kv_dtype in (None, "auto") else kv_dtype
    bits = PLAIN_BITS.get((name or "").removeprefix("torch."))
    if bits is None:
        return None, f"the cache's dtype is {'not known' if name is None else name}"
    if bits <= FP8_BITS:
        return None, f"the cache is in {name} already"
    return _with_block_share(now, FP8_BITS, bits, f"8 of {bits} bits")


def _two_ranks(now: Situation) -> tuple[int | None, str]:
    if now.info.kind != "vllm":
        return None, "this server has no tensor parallelism"
    price = now.theory.price if now.theory is not None else None
    if price is None:
        return None, "the model's config is not known, so neither are its KV heads"
    if price.engine.tp != 1:
        return None, f"it runs on {price.engine.tp} ranks already"
    one = kv_bytes_per_token(price.spec, price.kv_dtype, 1)
    two = kv_bytes_per_token(price.spec, price.kv_dtype, 2)
    if two == one:
        return None, f"a rank would keep {one:,} B per token as now: its KV heads are not split"
    note = f"{two:,} of {one:,} B per token on each rank"
    found, text = _with_block_share(now, two, one, note)
    return found, f"{text}; the memory that half the weights leave comes on top"


def _with_block_share(now: Situation, part: int, whole: int, note: str) -> tuple[int | None, str]:
    """The same pool in blocks of ``part / whole`` of their bytes."""
    blocks = now.info.num_blocks
    if blocks is None:
        return None, "the number of blocks is not known"
    more = blocks * whole // part
    found = now.requests(msgspec.structs.replace(now.info, num_blocks=more))
    return found, f"{note}: floor({blocks:,} blocks x {whole:,} / {part:,}) = {more:,} blocks"


def _half_output(now: Situation) -> tuple[int | None, str]:
    halved: Counter[tuple[int, int]] = Counter()
    for (prompt, output), times in now.lengths.items():
        halved[prompt, max(1, output // 2)] += times
    if halved == Counter(now.lengths):
        return None, "one output token cannot be halved"
    if len(halved) == 1:
        (prompt, output), (_, before) = next(iter(halved)), next(iter(now.lengths))
        text = f"{prompt:,} + {output:,} tokens in place of {prompt:,} + {before:,}"
    else:
        n = sum(halved.values())
        means = [
            sum(pair[1] * times for pair, times in of.items()) / n for of in (now.lengths, halved)
        ]
        text = f"{means[1]:,.1f} output tokens on average in place of {means[0]:,.1f}"
    return now.requests(lengths=halved), text


def _utilization(now: Situation) -> tuple[int | None, str]:
    info, pool = now.info, now.pool
    if info.kind != "vllm" or not info.gpu_uuids:
        return None, "its KV memory is given in bytes, not as a share of a GPU"
    share = pool.utilization if pool is not None else None
    if share is None:
        return None, "the server does not state its utilization"
    if share >= UTILIZATION:
        return None, f"it has {share:g} already"
    if now.device_bytes is None:
        return None, "the GPU's whole memory is not on record"
    block = pool.block_bytes if pool is not None else None
    if block is None or info.num_blocks is None:
        return None, "the bytes of a block are not known"
    gained = int((UTILIZATION - share) * now.device_bytes)
    more = info.num_blocks + int(gained // block)
    text = (
        f"({UTILIZATION} - {share:g}) x {now.device_bytes:,} B = {gained:,} B more: "
        f"{info.num_blocks:,} + floor({gained:,} / {block:,.0f}) = {more:,} blocks"
    )
    return now.requests(msgspec.structs.replace(info, num_blocks=more)), text
