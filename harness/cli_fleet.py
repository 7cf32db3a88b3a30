"""``python scenarios/<name>.py``: starts the servers that a scenario compares, and runs it.

The scenario itself is a locustfile, which takes the URLs of servers that run already. Here
they are started on this machine, one after the other, and stopped when the run has ended,
however it ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from harness.errors import KvkneeError, printable
from harness.stack.fleet import FleetMember, chosen, fleet
from harness.stack.options import UpOptions
from harness.stack.progress import shown
from harness.stack.state import home_folder
from harness.terminated import Terminated, sigterm_raises

INTERRUPTED = 130
#: how long the run has after Ctrl-C for its report
_LAST_WORDS_S = 120.0
#: whoever ends a whole process group has told the run, too; this long it has to show that
_TOLD_S = 1.0
_LOCUST = (sys.executable, "-m", "locust")


def main(scenario: Path, members: Sequence[FleetMember], arguments: Sequence[str]) -> int:
    """Run the command line of a scenario that owns its servers; returns its exit code."""
    names = ",".join(member.name for member in members)

    @click.command(
        context_settings={"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]},
        help=f"Start {names} on this machine, with the same model and KV budget, run "
        f"{scenario.name} against them, and stop them. Options that are not listed here are the "
        f"scenario's: locust -f {scenario.name} --scenario-help.",
        epilog=f"With servers of your own: locust -f {scenario.name} --headless "
        "--backends name=url,...",
    )
    @click.option("--servers", default=names, show_default=True, help="Which of them to start.")
    @click.option("--model", default="tiny", show_default=True, help="As of kvknee up.")
    @click.option("--kv-budget", metavar="SIZE", help="Of each server.  [default: the model's]")
    @click.option("--max-model-len", type=click.IntRange(min=1), default=2048, show_default=True)
    @click.option("--max-num-seqs", type=click.IntRange(min=1), default=128, show_default=True)
    @click.option("--threads", type=click.IntRange(min=1), help="CPU threads per server.")
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    def command(servers: str, rest: tuple[str, ...], **options: Any) -> int:
        return _run(scenario, chosen(members, servers, "--servers"), rest, options)

    try:
        with sigterm_raises():
            return int(command.main(args=list(arguments), standalone_mode=False) or 0)
    except KvkneeError as error:
        return _complain(str(error), error.exit_code)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted", INTERRUPTED)


def _run(
    scenario: Path, members: Sequence[FleetMember], rest: Sequence[str], options: dict[str, Any]
) -> int:
    from rich.console import Console

    asked = UpOptions(home=home_folder(), **options)
    with (
        shown(Console(stderr=True)) as progress,
        fleet(asked, members, progress) as urls,
    ):
        progress.update("running the scenario")
        backends = ",".join(f"{name}={url}" for name, url in urls.items())
        command = [*_LOCUST, "-f", str(scenario), "--headless", "--backends", backends, *rest]
        return _wait(subprocess.Popen(command))  # noqa: S603


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The run's exit code; when it is cut short it keeps what it has, and has time for that."""
    try:
        return process.wait()
    except Terminated:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TOLD_S)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _last_words(process)
        raise
    except KeyboardInterrupt:
        # the terminal has told the run, too
        _last_words(process)
        raise


def _last_words(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_LAST_WORDS_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"error: {printable(text)}\n")
    return code
