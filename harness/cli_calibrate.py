"""The verb ``calibrate``: how right the client's times are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.calibrate.settings import CalibrateSettings

_INTERRUPTED = 130


@click.command()
@click.option("--streams", metavar="LIST", help="Streams at once.  [default: 100,500,1000,2000]")
@click.option("--rate", default="50", show_default=True, help="Tokens per second of each stream.")
@click.option("--seconds", "length", help="Measured time of each level.  [default: 10]")
@click.option("--quick", is_flag=True, help="100 and 500 streams for 3 seconds each.")
@click.option(
    "--core",
    type=click.IntRange(0, 4095),
    help="Keep the client on that core.  [default: any, as in a run]",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the result is kept.  [default: $KVKNEE_HOME or .kvknee]",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
def calibrate(
    streams: str | None,
    rate: str,
    length: str | None,
    quick: bool,
    core: int | None,
    home: Path | None,
    as_json: bool,
) -> int:
    """Measure the measuring: this client against a server that knows its own times.

    A simulated server on this machine streams tokens at a set pace and notes when it wrote
    each one; the client of a run takes them in. Shown are the client's errors of TTFT and
    ITL at rising numbers of streams, and the highest token rate at which both stay within
    1 ms at p99. The result is kept, and a run that goes beyond it says so in its report.

    \b
    kvknee calibrate                          about 70 seconds
    kvknee calibrate --quick                  about 20
    kvknee calibrate --streams 500,4000 --rate 30

    Let nothing else run meanwhile: what disturbs a run disturbs this. Exit codes: 0 done
    (whatever was found), 1 it could not be done, 2 bad input, 130 interrupted; levels
    that were done are shown and kept.

    \f
    Raises UsageError for bad input, CalibrationError for what fails.
    """
    from harness.calibrate.settings import read_settings
    from harness.stack.state import home_folder

    settings = read_settings(streams, rate, length, core, quick=quick)
    return _calibrate(settings, home or home_folder(), as_json=as_json)


def _calibrate(settings: CalibrateSettings, home: Path, *, as_json: bool) -> int:
    import msgspec
    from rich.console import Console

    from harness.calibrate.session import calibrate as measure
    from harness.calibrate.stored import calibration_path
    from harness.calibrate.text import render

    found = measure(settings, home, Console(stderr=True))
    if found is None:
        click.echo("interrupted before a level was done", err=True)
        return _INTERRUPTED
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        console = Console()
        console.print(render(found))
        console.print(f"kept in {calibration_path(home)}", markup=False, soft_wrap=True)
    return 0 if found.complete else _INTERRUPTED
