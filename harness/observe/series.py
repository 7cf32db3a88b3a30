"""Series: one measured quantity over time, and all of those of one backend.

Pure numpy, no I/O and no clock. Times are monotonic seconds of the machine that sent
the load. What was not measured is absent: a missing key, None, or an empty series,
never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: where a backend's series come from
SeriesSource = Literal["scraper", "prometheus"]


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity over time: ``v[i]`` was read at ``t_s[i]``; both of shape (n,)."""

    #: monotonic seconds, rising
    t_s: NDArray[np.float64]
    v: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.t_s.shape != self.v.shape or self.t_s.ndim != 1:
            raise ValueError(f"times {self.t_s.shape} and values {self.v.shape} do not pair up")
        if np.any(np.diff(self.t_s) < 0):
            raise ValueError("times fall")

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Series:
        """A series of (time in s, value) pairs in any order; values that are not finite
        say nothing and are left out.
        """
        table = np.array(sorted(points), dtype=np.float64).reshape(-1, 2)
        table = table[np.isfinite(table[:, 1])]
        return cls(t_s=table[:, 0].copy(), v=table[:, 1].copy())

    def __len__(self) -> int:
        return int(self.t_s.size)

    def window(self, start_s: float, end_s: float) -> Series:
        """The samples with ``start_s <= t <= end_s``."""
        first = int(np.searchsorted(self.t_s, start_s, side="left"))
        last = int(np.searchsorted(self.t_s, end_s, side="right"))
        return Series(t_s=self.t_s[first:last], v=self.v[first:last])

    def increase(self, start_s: float, end_s: float) -> float | None:
        """By how much a counter rose between the first and last sample of a window.

        A fall is a restart of the server: the counter began again at 0, so the value
        after it is what was added. None with fewer than two samples: one sample tells
        no change.
        """
        v = self.window(start_s, end_s).v
        if v.size < 2:
            return None
        steps = np.diff(v)
        return float(np.where(steps < 0, v[1:], steps).sum())

    def resets(self, start_s: float, end_s: float) -> int:
        """How often a counter fell inside a window: restarts of the server."""
        return int(np.count_nonzero(np.diff(self.window(start_s, end_s).v) < 0))

    def maximum(self, start_s: float, end_s: float) -> float | None:
        """The largest sample of a window; None when it has none."""
        v = self.window(start_s, end_s).v
        return float(v.max()) if v.size else None

    def minimum(self, start_s: float, end_s: float) -> float | None:
        """The smallest sample of a window; None when it has none."""
        v = self.window(start_s, end_s).v
        return float(v.min()) if v.size else None

    def mean(self, start_s: float, end_s: float) -> float | None:
        """The mean of a window's samples (they are evenly spaced); None without any."""
        v = self.window(start_s, end_s).v
        return float(v.mean()) if v.size else None

    def last(self, start_s: float, end_s: float) -> float | None:
        """The last sample of a window; None when it has none."""
        v = self.window(start_s, end_s).v
        return float(v[-1]) if v.size else None


@dataclass(frozen=True)
class KvPool:
    """A server's KV memory as the server (or the flags it was launched with) states it."""

    total_bytes: int | None = None
    #: paged only; over all engines, vLLM's null blocks included
    num_blocks: int | None = None
    #: tokens per block
    block_size: int | None = None
    #: tokens that fit, as the server counts them (right for hybrid models too)
    size_tokens: int | None = None
    #: engines that each have such a pool; the figures above are their sums
    engines: int = 1
    #: share of the device's memory that the engine may take
    utilization: float | None = None
    #: of the cache; ``auto`` is the weights'
    dtype: str | None = None

    @property
    def usable_blocks(self) -> int | None:
        """Blocks that requests can get: vLLM keeps one null block per engine."""
        return None if self.num_blocks is None else self.num_blocks - self.engines

    @property
    def block_bytes(self) -> float | None:
        """Bytes of one block: the byte budget over the block count."""
        if self.total_bytes is None or not self.num_blocks:
            return None
        return self.total_bytes / self.num_blocks


@dataclass(frozen=True, eq=False)
class SharedDevice:
    """GPUs that several backends use: their memory cannot be told apart."""

    uuids: tuple[str, ...]
    backends: tuple[str, ...]
    total_used_bytes: Series


@dataclass(frozen=True, eq=False)
class BackendSeries:
    """All that was observed of one backend during a run."""

    backend: str
    source: SeriesSource
    #: canonical name -> series; a metric that was not measured is a missing key
    values: Mapping[str, Series]
    pool: KvPool | None
    #: when a scrape failed or brought nothing: gaps, never zeros
    failed_t_s: NDArray[np.float64]
    #: the distinct reasons, short
    failures: tuple[str, ...]
    #: canonical names that this kind of backend should have and did not expose on any
    #: page that was read; empty when none was
    missing: tuple[str, ...]
    #: scrapes that could be read; 0 means that its metrics were unavailable
    n_scrapes: int = 0
    #: GPUs that it has together with other backends: their memory is one total, which is
    #: no backend's figure and not in ``values``
    shared_device: SharedDevice | None = None

    @property
    def available(self) -> bool:
        """Whether its metrics could be read at all."""
        return self.n_scrapes > 0

    def get(self, name: str) -> Series | None:
        """The series of a canonical name, or None when it was not measured."""
        return self.values.get(name)
