"""Walks the numbers of streams, one level after the other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from harness.calibrate.client import Orders
from harness.calibrate.processes import PacedServer, paced_server, run_client, server_command
from harness.calibrate.result import LevelResult
from harness.calibrate.settings import OUTPUT_TOKENS, PROMPT_TOKENS, TTFT_S, CalibrateSettings
from harness.calibrate.truth import compare
from harness.errors import CalibrationError
from harness.records import RequestRecord


def measure_levels(
    settings: CalibrateSettings, tell: Callable[[str], None]
) -> Iterator[LevelResult]:
    """Each level as soon as it is measured; raises CalibrationError.

    While a level runs this process only waits: there may be no third core. ``tell`` is
    called often with what is going on.
    """
    with TemporaryDirectory(prefix="kvknee-calibrate-") as folder:
        tell("starting the simulated server")
        with paced_server(server_command(TTFT_S, settings.itl_s), settings.core) as server:
            for streams in settings.streams:
                yield _measure(settings, streams, server, Path(folder), tell)


def _measure(
    settings: CalibrateSettings,
    streams: int,
    server: PacedServer,
    folder: Path,
    tell: Callable[[str], None],
) -> LevelResult:
    orders = Orders(
        url=server.url,
        model="simulated",
        records=str(folder / f"{streams}.jsonl"),
        streams=streams,
        seconds=settings.seconds,
        request_s=settings.request_s,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        nonce=secrets.randbits(32),
        core=settings.core,
    )
    # before the window all begin and have an answer, after it the last ones end
    level_s = settings.seconds + 4 * settings.request_s
    name = f"{streams:,} streams"
    report = run_client(
        orders, lambda gone_s: tell(f"{name}: {gone_s:.0f} s of about {level_s:.0f} s"), level_s
    )
    tell(f"{name}: comparing")
    truth = server.take_truth()
    records = _records(Path(orders.records))
    return compare(streams, settings.asked_tokens_per_s(streams), records, truth, report)


def _records(path: Path) -> Iterator[RequestRecord]:
    decoder = msgspec.json.Decoder(RequestRecord)
    try:
        with path.open("rb") as lines:
            yield from (decoder.decode(line) for line in lines)
    except (OSError, msgspec.MsgspecError) as error:
        raise CalibrationError(f"the client's records cannot be read ({error})") from error
    finally:
        path.unlink(missing_ok=True)
