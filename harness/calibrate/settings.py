"""What ``kvknee calibrate`` was asked for, validated once. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.errors import OptionError
from harness.load.numbers import decimal, seconds
from harness.plan.levels import parse_levels

DEFAULT_STREAMS, QUICK_STREAMS = "100,500,1000,2000", "100,500"
DEFAULT_SECONDS, QUICK_SECONDS = "10", "3"
DEFAULT_RATE = "50"
TTFT_S = 0.05
#: Long enough to be mostly decoding, short enough for many first tokens.
OUTPUT_TOKENS = 64
PROMPT_TOKENS = 32
#: The simulated server paces its tokens with a resolution of this.
_MOST_RATE = 1000.0
_MOST_SECONDS = 600.0


@dataclass(frozen=True)
class CalibrateSettings:
    """One calibration, as asked for."""

    streams: tuple[int, ...]
    #: tokens per second of each stream
    rate: float
    #: length of each level's window
    seconds: float
    #: the core that the client is kept on; None: any
    core: int | None = None

    @property
    def itl_s(self) -> float:
        """Between two tokens of a stream."""
        return 1.0 / self.rate

    @property
    def request_s(self) -> float:
        """How long an answer takes."""
        return TTFT_S + (OUTPUT_TOKENS - 1) * self.itl_s

    def asked_tokens_per_s(self, streams: int) -> float:
        """What so many streams bring when each sends request after request."""
        return streams * OUTPUT_TOKENS / self.request_s


def read_settings(
    streams: str | None, rate: str, length: str | None, core: int | None, *, quick: bool
) -> CalibrateSettings:
    """Validate the options; raises OptionError for the first bad one."""
    levels = parse_levels(
        streams or (QUICK_STREAMS if quick else DEFAULT_STREAMS), option="--streams"
    )
    per_stream = decimal(rate)
    if not per_stream or per_stream > _MOST_RATE or not math.isfinite(1.0 / per_stream):
        raise OptionError(
            "--rate", rate, f"tokens/s of a stream, more than 0, up to {_MOST_RATE:g}"
        )
    text = length or (QUICK_SECONDS if quick else DEFAULT_SECONDS)
    length_s = seconds("--seconds", text)
    if length_s > _MOST_SECONDS:
        raise OptionError("--seconds", text, f"seconds up to {_MOST_SECONDS:g}")
    return CalibrateSettings(tuple(int(level) for level in levels), per_stream, length_s, core)
