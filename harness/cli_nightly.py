"""The verb ``nightly``: one night of a suite, unattended."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from harness.cli_stack import HOME, _home

#: as the shell reports a program that Ctrl-C ended
_INTERRUPTED, _FAILED = 130, 3


class Terminated(KeyboardInterrupt):
    """SIGTERM: tidied up like Ctrl-C, but the job has failed."""


@click.command()
@click.argument("suite_file", metavar="SUITE", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--results-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    help="Nights go into its folder nightly.",
)
@click.option(
    "--history",
    "history_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What the nights measured.  [default: history.sqlite in --results-dir]",
)
@click.option(
    "--backends",
    metavar="NAME=URL,...",
    help="Use these running servers; none is started, stopped or restarted.",
)
@click.option(
    "--repeats", type=click.IntRange(1, 100), help="Of every run, instead of the suite's."
)
@click.option("--dry-run", "--plan", is_flag=True, help="Show what would be measured, and stop.")
@HOME
def nightly(
    suite_file: Path,
    results_dir: Path,
    history_path: Path | None,
    backends: str | None,
    repeats: int | None,
    dry_run: bool,
    home: Path | None,
) -> int:
    """Measure the suite, compare with the nights before, say what got worse.

    \b
    kvknee nightly scenarios/nightly.toml --plan
    kvknee nightly scenarios/nightly.toml
    kvknee nightly scenarios/nightly.toml --backends paged=http://127.0.0.1:8000,...

    The servers are started for the night and stopped after it. A stack that is up as
    the suite asks (kvknee up) is used and left up; one with other settings is an error.
    Repeats of all runs take turns. The night is stored whole at its end, or not at all;
    then its reports lie in RESULTS/nightly/<night>/.

    The first nights seed the baseline: they are stored and end with exit code 2, until
    there are as many as the suite's min_nights. `kvknee history` lists them, marks one as
    a new baseline, or as bad.

    \b
    Exit codes
      0  no gated figure got worse
      1  a regression
      2  a gated figure could not be judged (too few samples or nights, or unstable),
         or bad input
      3  the job failed and nothing is stored: another job runs, servers do not start,
         nothing was measured, the history cannot be written, SIGTERM
      130  Ctrl-C
    """
    from rich.console import Console

    from harness.errors import UsageError
    from harness.nightly.job.night import NIGHTS, NightAsk, Outside, run_night
    from harness.nightly.job.plan import plan_lines, with_repeats
    from harness.nightly.job.times import known_times
    from harness.nightly.outputs.terminal import show
    from harness.nightly.suite import read_suite
    from harness.stack.progress import shown

    suite = with_repeats(read_suite(suite_file), repeats)
    ask = NightAsk(
        suite=suite,
        results=results_dir,
        history=history_path or results_dir / "history.sqlite",
        home=_home(home),
        backends=None if backends is None else _urls(backends),
    )
    if ask.backends is not None:
        needed = {name for run in suite.run for name in run.backends}
        missing = sorted(needed - set(ask.backends))
        if missing:
            raise UsageError(f"--backends: {', '.join(missing)} of the suite has no URL")
    if dry_run:
        known = known_times(results_dir / NIGHTS, suite.suite)
        for line in plan_lines(suite, known, starts=backends is None):
            click.echo(line)
        return 0
    outside = Outside(show=lambda night: show(night, Console()))
    try:
        with _sigterm_raises(), shown(Console(stderr=True)) as progress:
            night = run_night(ask, progress, outside)
    except Terminated:
        click.echo("kvknee: ended by SIGTERM; nothing of the night is stored", err=True)
        return _FAILED
    except KeyboardInterrupt:
        click.echo("kvknee: interrupted; nothing of the night is stored", err=True)
        return _INTERRUPTED
    except Exception as error:
        return _fault(error)
    click.echo(f"reports: {results_dir / NIGHTS / night.night_id}")
    return night.exit_code


def _fault(error: Exception) -> int:
    """The exit code of a job that broke: never 1, which says that a figure got worse."""
    from harness.errors import KvkneeError, NightlyError, UsageError

    if isinstance(error, (NightlyError, UsageError)):
        raise error
    if isinstance(error, KvkneeError):
        raise NightlyError(str(error)) from error
    # a fault of the program: whoever mends it needs the place
    traceback.print_exception(error)
    click.echo(f"kvknee: the job broke: {type(error).__name__}: {error}", err=True)
    return _FAILED


def _urls(text: str) -> dict[str, str]:
    """Read ``name=url,...``; raises OptionError."""
    from harness.errors import OptionError

    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, url = part.strip().partition("=")
        if not name or not url.startswith(("http://", "https://")) or name in found:
            raise OptionError("--backends", text, "name=url,... with each name once")
        found[name] = url
    return found


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def on_sigterm(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
