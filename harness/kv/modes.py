"""The name of a contiguous server's mode, as records are keyed by it.

It is the cache (``static``, ``dynamic``, ...), and after it what differs from the default:
the reservation (``static/exact``, ``static/pow2``) and the batching (``dynamic/batch`` for
static batches, ``static/none`` for one request at a time, ``static/exact/batch``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.kv.reserve import Reserve

Batching = Literal["continuous", "static", "none"]

_RESERVES: dict[str, Reserve] = {"exact": "exact", "pow2": "pow2"}
_BATCHINGS: dict[str, Batching] = {"batch": "static", "none": "none"}
#: how runs of earlier versions name one request at a time
_OLD_NONE = "-batching-none"


@dataclass(frozen=True)
class CacheMode:
    """How a contiguous server holds its cache and forms its batches."""

    cache: str
    reserve: Reserve = "max"
    batching: Batching = "continuous"


def mode_name(cache: str, reserve: str | None = None, batching: str | None = None) -> str:
    """The name from what a server states; None, and what is not known, count as the default."""
    parts = [cache]
    if reserve in _RESERVES:
        parts.append(reserve)
    parts += [part for part, stated in _BATCHINGS.items() if stated == batching]
    return "/".join(parts)


def read_mode(name: str) -> CacheMode | None:
    """What a name says; None for one that is not made of known parts."""
    if name.endswith(_OLD_NONE):
        name = name.removesuffix(_OLD_NONE) + "/none"
    cache, *parts = name.split("/")
    reserves = [_RESERVES[part] for part in parts if part in _RESERVES]
    batchings = [_BATCHINGS[part] for part in parts if part in _BATCHINGS]
    if len(reserves) + len(batchings) != len(parts) or max(len(reserves), len(batchings)) > 1:
        return None
    return CacheMode(
        cache, reserves[0] if reserves else "max", batchings[0] if batchings else "continuous"
    )
