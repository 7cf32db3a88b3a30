"""Which options of a contiguous server go together, before anything is loaded. Pure.

The server and ``kvknee up`` ask the same rules, so that the second need not start the first
to learn what it would refuse.
"""

from __future__ import annotations

from typing import Protocol

from harness.errors import OptionError

#: most requests of a static batch where nobody says
DEFAULT_BATCH_SIZE = 8


class ModeOptions(Protocol):
    """How a server holds its cache and forms its batches; None where it was not said."""

    @property
    def cache(self) -> str:
        """``off``, ``dynamic``, ``static``, ``quantized`` or ``sliding``."""
        ...

    @property
    def kv_bits(self) -> int | None:
        """Of a cached number."""
        ...

    @property
    def sliding_window(self) -> int | None:
        """Tokens that a query sees."""
        ...

    @property
    def compile(self) -> bool:
        """Whether the decode step is compiled."""
        ...

    @property
    def reserve(self) -> str:
        """``exact``, ``pow2`` or ``max``."""
        ...

    @property
    def batching(self) -> str:
        """``continuous``, ``none`` or ``static``."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Most requests of a batch."""
        ...

    @property
    def max_num_seqs(self) -> int:
        """Most requests that run at once."""
        ...


def check_mode_options(asked: ModeOptions) -> None:
    """Raises OptionError for the first option that the others have no use for."""
    _check_cache(asked)
    _check_reserve(asked)
    _check_batches(asked)


def _check_cache(asked: ModeOptions) -> None:
    if asked.kv_bits is not None and asked.cache != "quantized":
        raise OptionError("--kv-bits", asked.kv_bits, _only("quantized", asked.cache))
    if asked.sliding_window is not None and asked.cache != "sliding":
        raise OptionError("--sliding-window", asked.sliding_window, _only("sliding", asked.cache))
    if asked.compile and (asked.cache, asked.reserve) != ("static", "max"):
        expected = "--cache static with --reserve max beside it, or to be left out"
        raise OptionError("--compile", True, expected)


def _check_reserve(asked: ModeOptions) -> None:
    if asked.reserve != "max" and asked.cache != "static":
        raise OptionError(
            "--reserve", asked.reserve, f"--cache static: {asked.cache} is not allocated beforehand"
        )


def _check_batches(asked: ModeOptions) -> None:
    if asked.batching != "static":
        if asked.batch_size is not None:
            raise OptionError("--batch-size", asked.batch_size, "--batching static with it")
        return
    if asked.compile or asked.cache not in ("static", "dynamic"):
        expected = "continuous or none with --compile and with caches but static and dynamic"
        raise OptionError("--batching", "static", expected)
    if asked.batch_size is not None and asked.batch_size > asked.max_num_seqs:
        raise OptionError(
            "--batch-size", asked.batch_size, f"at most --max-num-seqs {asked.max_num_seqs}"
        )


def _only(wanted: str, given: str) -> str:
    return f"--cache {wanted} beside it, or to be left out with --cache {given}"
