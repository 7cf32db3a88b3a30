"""The verb ``history``: what the nights measured, and which of them count."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.nightly.history import History, Mark


@click.group()
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("results/history.sqlite"),
    show_default=True,
    help="The history.",
)
@click.pass_context
def history(ctx: click.Context, path: Path) -> None:
    """The stored nights: list, show, export; say which of them count.

    \b
    kvknee history list
    kvknee history show RUN_ID
    kvknee history export --output nights.csv
    kvknee history baseline RUN_ID --reason "new driver"
    kvknee history bad RUN_ID --reason "the machine was not idle"

    Exit codes: 0 done; 2 bad input.
    """
    ctx.obj = path


@history.command("list")
@click.pass_obj
def list_runs(path: Path) -> None:
    """One line for each run, oldest first."""
    with _opened(path) as stored:
        runs = stored.runs()
    for run in runs:
        mark = f"  {run.mark}: {run.note}" if run.mark else ""
        click.echo(f"{_when(run.at_wall_s)}  {run.suite}  {run.run_id}{mark}")
    if not runs:
        click.echo("no run is stored")


@history.command()
@click.argument("run_id")
@click.pass_obj
def show(path: Path, run_id: str) -> None:
    """The setups, figures and verdicts of one run; - where a figure is absent."""
    with _opened(path) as stored:
        run = stored.run(run_id)
        setups, figures = stored.setups(run_id), stored.figures(run_id)
        verdicts = stored.verdicts(run_id)
    click.echo(f"{run.run_id}  {_when(run.at_wall_s)}  suite {run.suite}")
    if run.mark:
        click.echo(f"marked {run.mark}: {run.note}")
    for name, facts in setups.items():
        known = (f"{key}={value}" for key, value in facts.items() if value is not None)
        click.echo(f"{name}: {', '.join(known)}")
    for item in figures:
        value = "-" if item.value is None else f"{item.value:.6g}"
        said = verdicts.get((item.cell, item.metric), "")
        line = f"{item.cell}  {item.metric}  r{item.repeat}  {value}  {said}"
        click.echo(line.rstrip())


@history.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: standard output]",
)
@click.pass_obj
def export(path: Path, output: Path | None) -> None:
    """Every figure of every run as CSV, in seconds, bytes and tokens."""
    from harness.errors import OptionError
    from harness.nightly.baseline import export_csv

    with _opened(path) as stored:
        text = export_csv(stored)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            "--output", str(output), f"a file that can be written ({error.strerror})"
        ) from error


_reason = click.option("--reason", required=True, help="Kept with the mark, and shown.")


@history.command()
@click.argument("run_id")
@_reason
@click.pass_obj
def baseline(path: Path, run_id: str, reason: str) -> None:
    """Compare with RUN_ID and later nights only, whatever was said of it."""
    _mark(path, run_id, "baseline", reason)


@history.command()
@click.argument("run_id")
@_reason
@click.pass_obj
def bad(path: Path, run_id: str, reason: str) -> None:
    """Never compare with RUN_ID."""
    _mark(path, run_id, "bad", reason)


def _mark(path: Path, run_id: str, mark: Mark, reason: str) -> None:
    from harness.errors import OptionError, printable

    if not reason.strip():
        raise OptionError("--reason", reason, "some words")
    with _opened(path) as stored:
        stored.mark(run_id, mark, printable(reason.strip()))
    click.echo(f"{run_id} is marked {mark}")


def _opened(path: Path) -> History:
    from harness.nightly.history import History

    return History.open(path, create=False)


def _when(at_wall_s: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_wall_s, UTC).strftime("%Y-%m-%d %H:%M")
