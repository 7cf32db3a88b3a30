"""The command line of ``scenarios/cache_modes.py``."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from harness.errors import KvkneeError, UsageError, printable
from harness.modes.asked import NAMES, Load, Mode, parse_modes
from harness.modes.compare import HEADS, Outcome, mode_rows, require_alike
from harness.modes.folder import keep, outcomes, read_kept, write_comparison
from harness.modes.measure import Loader, loaded, locust_loader, measure_modes
from harness.report.rows import THIN_NOTE
from harness.report.terminal import text_table
from harness.report.units import THIN
from harness.stack.options import UpOptions
from harness.stack.progress import shown
from harness.stack.state import home_folder

INTERRUPTED = 130
#: the note of a mode that another call measured
EARLIER = "measured by an earlier call"
_EPILOG = """
\b
A server of your own
  --url measures the mode that it is in and prints how to start it in the others. With the
  same --into each call adds its mode to one table, which marks what earlier calls measured.
  Without --url the table shows this call's modes alone.

\b
Examples
  python scenarios/cache_modes.py --model smollm2 --levels 1,4 --prompt-tokens 1024
  python scenarios/cache_modes.py --url http://127.0.0.1:8001 --into results/modes

\b
Exit codes: 0 every mode was measured, 1 a load failed or a mode gave no figures (refused at
its start, say), 2 bad input, 130 interrupted (the modes measured before are kept and shown).
"""


@dataclass(frozen=True)
class Table:
    """What one call shows in the end."""

    folder: Path
    #: the call's own name in the folder
    call: str
    #: whether the modes of earlier calls belong to it
    grows: bool

    def rows(self) -> list[Outcome]:
        """The modes to show; those of earlier calls say so."""
        found = outcomes(self.folder)
        if not self.grows:
            return [item for item in found if item.call == self.call]
        return [item if item.call == self.call else _earlier(item) for item in found]


def _earlier(item: Outcome) -> Outcome:
    return replace(item, reason="; ".join(filter(None, (item.reason, EARLIER))))


@click.command(
    epilog=_EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.option("--modes", default=",".join(NAMES), help="Which, joined by commas.")
@click.option("--model", default="tiny", help="tiny, smollm2, a model's folder, or a hub id.")
@click.option("--levels", default="1,4", help="Concurrent requests, level by level.")
@click.option("--prompt-tokens", default=512, type=click.IntRange(min=1))
@click.option("--output-tokens", default=64, type=click.IntRange(min=1))
@click.option("--min-requests", default="20", help="Counted requests per level.")
@click.option("--max-level-seconds", default="120", help="Longest time of a level.")
@click.option("--request-timeout", default="300", help="Seconds for a whole request.")
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Of the prompts.")
@click.option(
    "--sliding-window",
    default=256,
    type=click.IntRange(min=1),
    help="Tokens that a query sees in mode sliding. It changes the answers.",
)
@click.option("--kv-budget", metavar="SIZE", help="As of kvknee up.")
@click.option("--max-model-len", default=2048, type=click.IntRange(min=2))
@click.option("--dtype", default="bfloat16", help="Of weights and cache.")
@click.option("--threads", type=click.IntRange(min=1), help="As of kvknee up.")
@click.option("--port", default=8001, type=click.IntRange(1, 65_535), help="Of the server.")
@click.option("--url", help="A running server that is not ours to restart.")
@click.option(
    "--into", type=click.Path(path_type=Path), help="Folder of the comparison; a new one if none."
)
@click.option("--results-dir", default="results", type=click.Path(path_type=Path))
@click.option("--home", type=click.Path(path_type=Path), help="As of kvknee up.")
@click.pass_context
def cache_modes(ctx: click.Context, /, **options: Any) -> None:
    """Compare the cache modes of the contiguous server: TTFT, TPOT and KV bytes."""
    modes = parse_modes(options["modes"])
    folder = options["into"] or _new_folder(options["results_dir"])
    ctx.obj = table = Table(folder, secrets.token_hex(8), grows=bool(options["url"]))
    home = options["home"] or home_folder()
    load = Load(
        levels=options["levels"],
        prompt_tokens=options["prompt_tokens"],
        output_tokens=options["output_tokens"],
        min_requests=options["min_requests"],
        max_level_seconds=options["max_level_seconds"],
        seed=options["seed"],
        request_timeout=options["request_timeout"],
    )
    if load.prompt_tokens + load.output_tokens > options["max_model_len"] and not options["url"]:
        raise UsageError(
            f"--max-model-len: {options['max_model_len']} is fewer than the "
            f"{load.prompt_tokens} + {load.output_tokens} tokens of a request; raise it"
        )
    loader = locust_loader(load, home)
    if options["url"]:
        _foreign(options["url"], modes, options, table, loader)
        return
    basis = UpOptions(
        home=home,
        model=options["model"],
        kv_budget=options["kv_budget"],
        max_model_len=options["max_model_len"],
        dtype=options["dtype"],
        threads=options["threads"],
        contiguous_port=options["port"],
    )
    with shown(Console(stderr=True)) as progress:
        measure_modes(
            modes, basis, options["sliding_window"], folder, loader, progress, call=table.call
        )


def _foreign(
    url: str, modes: Sequence[Mode], options: dict[str, Any], table: Table, loader: Loader
) -> None:
    """Measure the mode that a server is in; say how to start it in the others."""
    # imported here: it brings the load, which no other path needs
    from harness.modes.running import running_mode

    name, folder = running_mode(url), table.folder
    keep(folder, msgspec.structs.replace(loaded(name, url, folder, loader), call=table.call))
    done = {kept.mode for kept in read_kept(folder)}
    missing = [mode for mode in modes if mode.name not in done]
    if not missing:
        return
    click.echo(f"{url} is not ours to restart. For the other modes start it with one of")
    for mode in missing:
        flags = " ".join(mode.flags(options["sliding_window"]))
        click.echo(f"  {mode.name:<12}python -m servers.contiguous --model MODEL {flags}")
    click.echo(f"and each time run this again with --url {url} --into {folder}")


def _new_folder(results: Path) -> Path:
    name = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return results / f"{name}-cache_modes"


def show(table: Table) -> int:
    """Print the table of a folder and write it; the exit code."""
    found = table.rows()
    if not found:
        return 0
    require_alike(found)
    rows = mode_rows(found, stacked=True)
    # the note may be long: below the table it has the whole width
    notes = {f"{row[0]}: {row[-1]}" for row in rows if row[-1]}
    console = Console()
    console.print(text_table(HEADS[:-1], [row[:-1] for row in rows]))
    for note in sorted(notes):
        console.print(Text(printable(note)), soft_wrap=True)
    if any(THIN in text for row in rows for text in row):
        console.print(Text(THIN_NOTE, style="dim"))
    written = write_comparison(table.folder, found)
    console.print(f"comparison: {written}", markup=False, soft_wrap=True)
    return _judged([item for item in found if item.call == table.call])


def _judged(own: Sequence[Outcome]) -> int:
    """The exit code of what this call measured; a line for each mode without figures."""
    for item in own:
        why = item.without_figures
        if why is not None:
            _complain(f"mode {item.mode} gave no figures: {why}", 1)
    return 1 if any(item.without_figures or item.reason for item in own) else 0


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code and prints what went wrong as one line."""
    code = 0
    context: click.Context | None = None
    try:
        context = cache_modes.make_context("cache_modes.py", list(arguments or sys.argv[1:]))
        with context:
            cache_modes.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except KvkneeError as error:
        code = _complain(str(error), error.exit_code)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = _complain("interrupted; the modes measured so far are kept", INTERRUPTED)
    table = context.obj if context is not None else None
    try:
        shown_code = show(table) if isinstance(table, Table) else 0
    except KvkneeError as error:
        shown_code = _complain(str(error), error.exit_code)
    return code or shown_code


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"cache_modes: {' '.join(printable(message).split())}\n")
    return code
