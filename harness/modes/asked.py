"""Which cache modes are compared, and how each is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import OptionError
from harness.stack.options import CacheMode, UpOptions

#: the mode that the others are held against
BASELINE = "dynamic"


@dataclass(frozen=True)
class Mode:
    """One cache mode of the contiguous server, by the name that the table gives it."""

    name: str
    cache: CacheMode
    kv_bits: int | None = None
    #: whether it needs a window where the model has none
    windowed: bool = False

    def options(self, basis: UpOptions, sliding_window: int | None) -> UpOptions:
        """How the local stack starts it."""
        return replace(
            basis,
            backends="contiguous",
            cache=self.cache,
            kv_bits=self.kv_bits,
            sliding_window=sliding_window if self.windowed else None,
        )

    def flags(self, sliding_window: int | None) -> tuple[str, ...]:
        """The same as flags of ``python -m servers.contiguous``."""
        flags = ["--cache", self.cache]
        if self.kv_bits is not None:
            flags += ["--kv-bits", f"{self.kv_bits}"]
        if self.windowed and sliding_window is not None:
            flags += ["--sliding-window", f"{sliding_window}"]
        return tuple(flags)


ALL_MODES: tuple[Mode, ...] = (
    Mode("dynamic", "dynamic"),
    Mode("static", "static"),
    Mode("quantized-8", "quantized", kv_bits=8),
    Mode("quantized-4", "quantized", kv_bits=4),
    Mode("sliding", "sliding", windowed=True),
    # the slowest comes last, so that a user who has seen enough loses nothing else
    Mode("off", "off"),
)
NAMES = tuple(mode.name for mode in ALL_MODES)


def parse_modes(text: str, option: str = "--modes") -> tuple[Mode, ...]:
    """Read ``off,dynamic,quantized-4``; the order is always the table's; raises OptionError."""
    asked = [part.strip() for part in text.split(",")]
    if not set(asked) <= set(NAMES) or len(set(asked)) < len(asked):
        raise OptionError(option, text, f"some of {','.join(NAMES)}, each once")
    return tuple(mode for mode in ALL_MODES if mode.name in asked)


@dataclass(frozen=True)
class Load:
    """The workload that every mode gets, as options of ``scenarios/concurrency.py``."""

    levels: str
    prompt_tokens: int
    output_tokens: int
    min_requests: str
    max_level_seconds: str
    seed: int
    request_timeout: str

    def arguments(self, url: str, results: Path) -> tuple[str, ...]:
        """The load's command line behind Locust's own part."""
        return (
            *("--backends", f"contiguous={url}"),
            *("--levels", self.levels),
            *("--prompt-tokens", f"{self.prompt_tokens}"),
            *("--output-tokens", f"{self.output_tokens}"),
            *("--min-requests", self.min_requests),
            *("--max-level-seconds", self.max_level_seconds),
            *("--request-timeout", self.request_timeout),
            *("--idle-timeout", self.request_timeout),
            *("--seed", f"{self.seed}"),
            # no mode is judged by limits that were made for another one
            *("--slo", "", "--prometheus-url", "none", "--metrics-port", "none"),
            *("--results-dir", str(results)),
        )
