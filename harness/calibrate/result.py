"""What a calibration found: frozen types, as they stand in ``calibration.json``.

Schema history
    1   first version

Seconds throughout. An error is the absolute difference between what the client measured
and what the server wrote, on one clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.records import Scalar

CALIBRATION_SCHEMA_VERSION = 1
#: The p99 of both errors must stay within this.
ERROR_LIMIT_S = 0.001
#: Beyond this share of events whose stamp is an upper bound the times are not trusted.
COALESCED_LIMIT = 0.01


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of an error over ``n`` measurements; None without any."""

    n: int
    p50_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """One number of streams."""

    streams: int
    #: what the streams would bring together if none were late
    asked_tokens_per_s: float
    #: what arrived inside the window
    tokens_per_s: float
    requests: int
    #: requests that did not end well, or of which the server knows nothing
    failed: int
    #: tokens written and not received, and received and not written
    lost: int
    invented: int
    ttft_error: Errors
    itl_error: Errors
    #: from the client's "sent" to the server's having read the request
    to_server: Errors
    #: by how much the server wrote later than it wanted: its limit, not the client's
    server_late: Errors
    coalesced_share: float | None
    #: CPU time of the client's process over the window, of one core
    cpu_ratio: float
    #: the longest that its event loop was late
    lag_max_s: float

    @property
    def within(self) -> bool:
        """Whether the client was right here: every token, and both p99 within the limit."""
        errors = (self.ttft_error.p99_s, self.itl_error.p99_s)
        return (
            all(error is not None and error <= ERROR_LIMIT_S for error in errors)
            and not self.failed + self.lost + self.invented
            and (self.coalesced_share or 0.0) <= COALESCED_LIMIT
        )


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """All levels of one calibration, and where it holds."""

    schema_version: int = CALIBRATION_SCHEMA_VERSION
    made_wall_s: float
    #: machine and versions: a calibration holds where all of it is the same
    identity: dict[str, Scalar]
    rate_per_stream: float
    seconds: float
    #: every level that was asked for was measured
    complete: bool
    levels: tuple[LevelResult, ...]
    #: see ``ceiling``
    tokens_per_s: float | None


def ceiling(levels: Sequence[LevelResult]) -> float | None:
    """The highest token rate at which the client was right; None when it never was."""
    return max((level.tokens_per_s for level in levels if level.within), default=None)
