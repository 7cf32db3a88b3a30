"""The verb ``nightly``: one night of a suite, unattended."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli_stack import HOME, _home
from harness.terminated import Terminated, sigterm_raises

if TYPE_CHECKING:
    from harness.nightly.night_types import Night
    from harness.nightly.suite import Suite

#: as the shell reports a program that Ctrl-C ended
_INTERRUPTED, _FAILED = 130, 3


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
def nightly(**options: Any) -> int:
    """Measure the suite, compare with the nights before, say what got worse.

    \b
    kvknee nightly scenarios/nightly.toml --plan
    kvknee nightly scenarios/nightly.toml
    kvknee nightly scenarios/nightly.toml --backends paged=http://127.0.0.1:8000,...

    The servers are started for the night and stopped after it. A stack that is up as
    the suite asks (kvknee up) is used and left up; one with other settings is an error.
    A suite with [compose] has them started by docker compose, in a project of its own.
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
         nothing was measured, the history cannot be written, SIGTERM. Where only its
         reports cannot be written the night is stored, and that is said
      130  Ctrl-C
    """
    try:
        with sigterm_raises():
            return _night(**options)
    except KeyboardInterrupt as error:
        return _ended(error)


def _night(
    *,
    suite_file: Path,
    results_dir: Path,
    history_path: Path | None,
    backends: str | None,
    repeats: int | None,
    dry_run: bool,
    home: Path | None,
) -> int:
    from harness.cli_suite import runnable_suite
    from harness.nightly.job.night import NIGHTS, NightAsk, Outside, run_night
    from harness.nightly.job.plan import plan_lines, with_repeats
    from harness.nightly.job.times import known_times
    from harness.nightly.job.told import PatientConsole, Told
    from harness.stack.progress import shown

    suite = with_repeats(runnable_suite(suite_file), repeats)
    ask = NightAsk(
        suite=suite,
        results=results_dir,
        history=history_path or results_dir / "history.sqlite",
        home=_home(home),
        backends=None if backends is None else _urls(backends),
    )
    _require_servers(suite, ask.backends)
    if dry_run:
        known = known_times(results_dir / NIGHTS, suite.suite)
        for line in plan_lines(suite, known, starts=backends is None):
            click.echo(line)
        return 0
    try:
        with shown(PatientConsole(stderr=True)) as progress:
            night = run_night(ask, Told(progress), Outside(show=_show))
    except Exception as error:
        return _fault(error)
    _say(f"reports: {results_dir / NIGHTS / night.night_id}")
    return night.exit_code


def _require_servers(suite: Suite, urls: Mapping[str, str] | None) -> None:
    """Raise UsageError for a backend that has no URL and cannot be started either."""
    from harness.errors import UsageError
    from harness.stack.options import BACKENDS

    needed = {name for run in suite.run for name in run.backends}
    if urls is None:
        unknown = sorted(needed - set(BACKENDS))
        if unknown:
            raise UsageError(
                f"{', '.join(unknown)} cannot be started here ({' and '.join(BACKENDS)} can); "
                "name running servers with --backends name=url,..."
            )
        return
    missing = sorted(needed - set(urls))
    if missing:
        raise UsageError(f"--backends: {', '.join(missing)} of the suite has no URL")


def _show(night: Night) -> None:
    from harness.nightly.job.told import PatientConsole, told
    from harness.nightly.outputs.terminal import show

    if not told(lambda: show(night, PatientConsole())):
        _lose_output()


def _say(line: str) -> None:
    """The last line; the output must not fail once more when the process ends."""
    from harness.nightly.job.told import told

    def say() -> None:
        click.echo(line)
        if sys.stdout is not None:
            sys.stdout.flush()

    if not told(say):
        _lose_output()


def _lose_output() -> None:
    sys.stdout = None


def _ended(error: KeyboardInterrupt) -> int:
    """What a signal left, and the exit code."""
    ended = isinstance(error, Terminated)
    how = f"ended by {error}" if ended else "interrupted"
    left = "; ".join(getattr(error, "__notes__", ())) or "nothing of the night is stored"
    click.echo(f"kvknee: {how}; {left}", err=True)
    return _FAILED if ended else _INTERRUPTED


def _fault(error: Exception) -> int:
    """The exit code of a job that broke: never 1, which says that a figure got worse.

    Nor 2: bad input was looked for before, and 2 is what nobody is woken by.
    """
    from harness.errors import KvkneeError, NightlyError

    if isinstance(error, NightlyError):
        raise error
    if isinstance(error, KvkneeError):
        raise NightlyError(str(error)) from error
    # a fault of the program: whoever mends it needs the place
    traceback.print_exception(error)
    click.echo(f"kvknee: the job broke: {type(error).__name__}: {error}", err=True)
    return _FAILED


def _urls(text: str) -> dict[str, str]:
    """Read ``name=url,...`` by the load's own rules; raises OptionError."""
    from harness.load.settings import parse_backends

    return {backend.name: backend.url for backend in parse_backends(text)}
