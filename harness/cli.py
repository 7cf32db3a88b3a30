"""The command ``kvknee``: its verbs, and the only place that exits the process.

Exit codes: 0 done, 1 a server or a run failed, 2 bad input, 130 interrupted. What goes
wrong is one line on standard error, never a traceback.
"""

from __future__ import annotations

import difflib
import errno
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from harness import __version__
from harness.cli_calibrate import calibrate
from harness.cli_compare import compare
from harness.cli_doctor import doctor
from harness.cli_equivalence import equivalence
from harness.cli_history import history
from harness.cli_nightly import nightly
from harness.cli_plan import plan_command
from harness.cli_reconcile import reconcile
from harness.cli_serve import serve
from harness.cli_stack import STACK_COMMANDS
from harness.errors import KvkneeError, RunDirError, shortened

INTERRUPTED = 130
#: a disk that takes no more, or broke
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
#: a word of click's messages that is too long to repeat in full
_LONG = re.compile(r"\S{121,}")


class Verbs(click.Group):
    """A group that names the verbs near to an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a verb; raises UsageError that names the right ones."""
        verbs = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in verbs:
            near = difflib.get_close_matches(args[0], verbs, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(verbs)}"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kvknee", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """How many requests an LLM server can hold at once, and what stops it there."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _command in (
    *(calibrate, compare, doctor, equivalence, history, nightly, plan_command),
    *(reconcile, serve),
    *STACK_COMMANDS,
):
    cli.add_command(_command)


@cli.command()
@click.argument("run_dir", required=False, type=click.Path(path_type=Path))
def report(run_dir: Path | None) -> None:
    """Rebuild the report of RUN_DIR; without it, of the newest run under ./results."""
    # numpy and the rest are loaded for this verb alone
    from rich.console import Console

    from harness.report.build import build_report
    from harness.report.terminal import print_summary

    path = run_dir or newest_run(Path("results"))
    summary = build_report(path)
    print_summary(summary, Console())
    click.echo(f"report: {path / 'report.html'}")


def newest_run(results: Path) -> Path:
    """The run directory whose manifest was written last; raises RunDirError for none."""
    manifests = list(results.glob("*/manifest.json"))
    if not manifests:
        raise RunDirError(
            f"no run directory under {results.resolve()}; name one, such as results/<run id>"
        )
    return max(manifests, key=lambda path: path.stat().st_mtime_ns).parent


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code and prints what went wrong as one line."""
    try:
        result = cli.main(args=arguments, prog_name="kvknee", standalone_mode=False)
        _flush()
    except KvkneeError as error:
        return _complain(str(error), error.exit_code)
    except click.ClickException as error:
        return _complain(_LONG.sub(_ends, error.format_message()), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # whoever read our output has what it wanted; keep the interpreter from flushing
        sys.stdout = None
        return 0
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # as above: the interpreter would try to flush again when it ends
        sys.stdout = None
        return _complain(f"the output cannot be written ({error.strerror})", 1)
    return result if isinstance(result, int) else 0


def _flush() -> None:
    """Write what is buffered; a closed standard output is None."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _ends(match: re.Match[str]) -> str:
    return shortened(match[0])


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"kvknee: {line}", file=sys.stderr)
    return code


def main() -> None:
    """The entry point of the command."""
    # a request to end is handled like Ctrl-C: what was started is stopped
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run())
