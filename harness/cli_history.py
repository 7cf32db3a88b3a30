"""The verb ``history``: what the nights measured, and which of them count."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.nightly.history import History, Mark
    from harness.nightly.trend import Trend


@click.group()
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("results/history.sqlite"),
    show_default=True,
    help="The history that kvknee nightly writes.",
)
@click.pass_context
def history(ctx: click.Context, path: Path) -> None:
    """The stored nights: look at them, export them, say which of them count.

    \b
    kvknee history list                        every night: alarms, verdicts, marks
    kvknee history show RUN_ID                 one night's figures and verdicts
    kvknee history sight                       how large a regression the gate can see here
    kvknee history trend ttft_p50_s            a metric night by night, and since when it changed
    kvknee history export --output nights.csv  every figure, for other programs

    A change that you meant makes nights fail until you accept it; a night that went wrong for
    another reason must not be compared with. Both are marked, with the reason:

    \b
    kvknee history baseline RUN_ID --reason "slower but safer sampler"
    kvknee history bad RUN_ID --reason "a backup ran"

    docs/nightly.md explains verdicts and baselines. Exit codes: 0 done; 2 bad input.
    """
    ctx.obj = path


@history.command("list")
@click.option("--last", type=click.IntRange(min=1), help="Only so many newest runs.")
@click.pass_obj
def list_runs(path: Path, last: int | None) -> None:
    """One line for each run, oldest first.

    "alarms" are gated series that were called regressed; "gated" counts the verdicts of all
    gated series; - where none was stored.
    """
    from harness.report.history_text import run_lines

    with _opened(path) as stored:
        runs, said = stored.runs(), stored.said()
    if not runs:
        click.echo("no run is stored")
        return
    _print(run_lines(runs[-(last or len(runs)) :], said))


@history.command()
@click.argument("run_id")
@click.pass_obj
def show(path: Path, run_id: str) -> None:
    """The setups, figures and verdicts of RUN_ID; - where a figure is absent."""
    from harness.report.history_text import shown_lines

    with _opened(path) as stored:
        run = stored.run(run_id)
        setups, figures = stored.setups(run_id), stored.figures(run_id)
        said = stored.said(run_id)
    _print(shown_lines(run, setups, figures, said))


_suite_file = click.option(
    "--suite",
    "suite_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take name and limits from this suite file.  [default: the newest run's suite, "
    "the gate's own limits]",
)


@history.command()
@_suite_file
@click.option("--all", "everything", is_flag=True, help="Also the series that are not gated.")
@click.pass_obj
def sight(path: Path, suite_file: Path | None, everything: bool) -> None:
    """How large a regression the gate can see, from this history.

    "sees" is the smallest regression that is found the same night in three of four cases;
    "spread" is how much the figure moves from night to night; "changed" is the night since which
    it is another one, where chance explains that in fewer than one of a hundred histories.
    More nights help little once there are thirty; more repeats help against noise within a
    night, a quieter machine against noise between nights, fewer gated series against both.
    """
    from harness.report.history_text import sight_lines

    found = _trends(path, suite_file)
    gated = [item for item in found if item.series.gated or everything]
    if not gated:
        click.echo("no series of the newest run was gated; --all shows the others")
        return
    _print(sight_lines(gated))


@history.command()
@click.argument("metric")
@click.option("--cell", help="Only this cell, as kvknee history show names it.")
@click.option(
    "--nights", type=click.IntRange(min=1), default=30, show_default=True, help="Newest nights."
)
@_suite_file
@click.pass_obj
def trend(path: Path, metric: str, cell: str | None, nights: int, suite_file: Path | None) -> None:
    """METRIC night by night, such as ttft_p50_s, and since when it changed.

    Shown are the nights of the newest run's setup (GPU, driver, engine, model, workload).
    """
    from harness.errors import OptionError
    from harness.nightly.metrics import METRICS
    from harness.report.history_text import trend_lines

    if metric not in METRICS:
        raise OptionError("METRIC", metric, _near(metric, tuple(METRICS)))
    found = [item for item in _trends(path, suite_file) if item.series.metric.name == metric]
    if cell is not None:
        cells = tuple(item.series.cell for item in found)
        if cell not in cells:
            raise OptionError("--cell", cell, _near(cell, cells))
        found = [item for item in found if item.series.cell == cell]
    if not found:
        click.echo(f"the newest run has no {metric}")
    for place, item in enumerate(found):
        _print(("",) * bool(place))
        _print(trend_lines(item, nights))


@history.command()
@click.option(
    "--format",
    "layout",
    type=click.Choice(["csv", "parquet"]),
    default="csv",
    show_default=True,
    help="parquet needs the extra kvknee[parquet] and --output.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write.  [default: standard output]",
)
@click.pass_obj
def export(path: Path, layout: str, output: Path | None) -> None:
    """Every figure of every run, a row for each repeat, in seconds, bytes and tokens.

    An absent figure is an empty field in CSV and null in Parquet, never zero.
    """
    from harness.errors import OptionError
    from harness.nightly.export import export_csv, export_parquet

    if layout == "parquet" and output is None:
        raise OptionError("--output", "", "a file, since Parquet is no text")
    if output is not None and _is_history(output, path):
        raise OptionError("--output", str(output), "another file than the history itself")
    with _opened(path) as stored:
        try:
            if output is None:
                click.echo(export_csv(stored), nl=False)
            elif layout == "parquet":
                export_parquet(stored, output)
            else:
                output.write_text(export_csv(stored), encoding="utf-8")
        except OSError as error:
            if output is None:
                raise
            raise OptionError(
                "--output", str(output), f"a file that can be written ({error.strerror})"
            ) from error


def _is_history(output: Path, path: Path) -> bool:
    """Whether to write there would destroy the history: SQLite keeps it in up to three files."""
    parts = [path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm", "journal"))]
    if output.exists():
        return any(part.exists() and output.samefile(part) for part in parts)
    return output.resolve() in [part.resolve() for part in parts]


_reason = click.option("--reason", required=True, help="Kept with the mark, and shown.")


@history.command()
@click.argument("run_id")
@_reason
@click.pass_obj
def baseline(path: Path, run_id: str, reason: str) -> None:
    """Compare with RUN_ID and later nights only, whatever was said of them until now.

    For a change that you meant. Another engine, model or machine needs no mark: its nights are
    compared among themselves.
    """
    _mark(path, run_id, "baseline", reason)


@history.command()
@click.argument("run_id")
@_reason
@click.pass_obj
def bad(path: Path, run_id: str, reason: str) -> None:
    """Never compare with RUN_ID."""
    _mark(path, run_id, "bad", reason)


@history.command()
@click.argument("run_id")
@click.pass_obj
def unmark(path: Path, run_id: str) -> None:
    """Take a mark of RUN_ID back."""
    with _opened(path) as stored:
        stored.mark(run_id, "", None)
    click.echo(f"{run_id} has no mark")


def _mark(path: Path, run_id: str, mark: Mark, reason: str) -> None:
    from harness.errors import OptionError, printable

    if not reason.strip():
        raise OptionError("--reason", reason, "some words")
    with _opened(path) as stored:
        stored.mark(run_id, mark, printable(reason.strip()))
    click.echo(f"{run_id} is marked {mark}")


def _opened(path: Path) -> AbstractContextManager[History]:
    from harness.nightly.history import History

    return History.opened(path, create=False)


def _trends(path: Path, suite_file: Path | None) -> tuple[Trend, ...]:
    from harness.nightly.suite import read_suite
    from harness.nightly.trend import trends

    suite = read_suite(suite_file) if suite_file is not None else None
    with _opened(path) as stored:
        if suite is None:
            return trends(stored)
        return trends(stored, suite.suite, suite.limits)


def _near(word: str, names: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(word, names, n=3)
    return f"{' or '.join(near)}" if near else f"one of {', '.join(names) or 'none'}"


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
