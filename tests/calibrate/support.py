"""Levels and calibrations as if measured."""

from __future__ import annotations

from harness.calibrate.result import Calibration, Errors, LevelResult, ceiling
from harness.records import Scalar

IDENTITY: dict[str, Scalar] = {"cpu": "a fast one", "cores": 2, "kvknee": "0.1.0"}


def level(streams: int, rate: float, p99_s: float = 0.0004) -> LevelResult:
    errors = Errors(n=1000, p50_s=p99_s / 10, p99_s=p99_s, max_s=2 * p99_s)
    return LevelResult(
        streams=streams,
        asked_tokens_per_s=rate,
        tokens_per_s=rate,
        requests=500,
        failed=0,
        lost=0,
        invented=0,
        ttft_error=errors,
        itl_error=errors,
        to_server=errors,
        server_late=Errors(n=1000, p50_s=0.0, p99_s=0.0001, max_s=0.0002),
        coalesced_share=0.0,
        cpu_ratio=0.3,
        lag_max_s=0.002,
    )


def calibration(
    *levels: LevelResult, complete: bool = True, identity: dict[str, Scalar] | None = None
) -> Calibration:
    return Calibration(
        made_wall_s=1_767_225_600.0,
        identity=identity or IDENTITY,
        rate_per_stream=50.0,
        seconds=10.0,
        complete=complete,
        levels=levels,
        tokens_per_s=ceiling(levels),
    )
