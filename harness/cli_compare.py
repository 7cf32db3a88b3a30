"""The verb ``compare``: two runs side by side, with paired differences and their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.compare.types import Comparison, RunSide
    from harness.rundir import RunDir


@click.command()
@click.argument("run_a", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("run_b", metavar="RUN_B", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "layout",
    type=click.Choice(["terminal", "markdown"]),
    default="terminal",
    show_default=True,
    help="How it is printed.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Also write one page to FILE."
)
@click.option(
    "--force",
    is_flag=True,
    help="Compare runs of another model or workload, or a run that was cut off, and say so.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of draws."
)
def compare(
    run_a: Path,
    run_b: Path,
    layout: str,
    as_json: bool,
    html: Path | None,
    force: bool,
    seed: int,
) -> None:
    """Put RUN_B beside RUN_A, level by level: what changed, and how sure that is.

    Each figure of a level stands with its change and a 95 % interval: B / A of latency
    percentiles, throughput and KV bytes per token, B - A of the share of failures. An interval
    that holds "no change" is no difference. Figures that either run does not trust (client-bound,
    not judged, too few samples, a warm prefix cache) are marked and get no verdict.

    Runs of another model or another workload are refused; what else differs (dtype, engine
    version, hardware, limits of a server) is said above the table.

    \b
    kvknee compare results/before results/after
    kvknee compare results/before results/after --html compare.html
    kvknee compare results/a results/b --format markdown
    kvknee compare results/a results/b --json

    Exit codes: 0 compared, whatever differs; 2 bad input.

    \f
    Raises KvkneeError for bad input.
    """
    from harness.compare.compare import compare_runs

    found = compare_runs(_side(run_a, force), _side(run_b, force), force=force, seed=seed)
    if html is not None:
        _write_page(found, html)
    if as_json:
        click.echo(_as_json(found))
    elif layout == "markdown":
        from harness.report.compare_text import markdown_comparison

        click.echo(markdown_comparison(found), nl=False)
    else:
        from rich.console import Console

        from harness.report.compare_text import print_comparison

        print_comparison(found, Console())
    if html is not None and not as_json and layout == "terminal":
        click.echo(f"page: {html}")


def _side(path: Path, force: bool) -> RunSide:
    """One run, analysed; raises KvkneeError for one that there is nothing to compare of."""
    from harness.analysis.run import analyse
    from harness.analysis.sound import SoundRecords, without_earlier
    from harness.analysis.table import build_tables
    from harness.analysis.windows import level_marks, redone
    from harness.compare.samples import cell_sample
    from harness.compare.types import RunSide
    from harness.observe.collect import all_series
    from harness.report.theories import run_theories
    from harness.rundir import RunDir

    run = RunDir.open(path)
    manifest = run.manifest()
    series = all_series(run, manifest)
    summary = analyse(manifest, run.records(), run.events(), series, run.damaged, run.absent)
    _check(path, run, summary.manifest.status, force)
    theories = run_theories(run, manifest)
    marks = level_marks(run.events())
    tables = build_tables(SoundRecords(without_earlier(run.records(), redone(marks))))
    samples = {
        cell.cell: cell_sample(
            manifest.backend(cell.cell.backend),
            tables[cell.cell],
            cell.window,
            series.get(cell.cell.backend),
            manifest.workload.loop,
            theories.get(cell.cell.backend),
        )
        for cell in summary.cells
        if cell.cell in tables
    }
    return RunSide(path.resolve().name, summary, samples)


def _check(path: Path, run: RunDir, status: str, force: bool) -> None:
    """Raises RunDirError for a run without records, and for a torn one that is not forced."""
    from harness.errors import RunDirError, shortened

    shown = shortened(str(path), 120)
    why = run.absent.get("records.jsonl")
    if why is not None:
        raise RunDirError(f"{shown}: records.jsonl {why}, so there is nothing to compare")
    damaged = run.damaged.get("records.jsonl")
    if force:
        return
    if damaged:
        raise RunDirError(
            f"{shown}: {damaged} damaged line{'s' if damaged > 1 else ''} in records.jsonl; "
            "--force compares what is left"
        )
    if status == "running":
        raise RunDirError(
            f"{shown}: the run is not at its end (it goes on, or was killed); end or resume it, "
            "or --force compares what there is"
        )


def _write_page(found: Comparison, path: Path) -> None:
    from harness.errors import OptionError
    from harness.report.compare_html import comparison_page

    try:
        path.write_text(comparison_page(found), encoding="utf-8")
    except OSError as error:
        raise OptionError("--html", str(path), f"a file to write ({error.strerror})") from error


def _as_json(found: Comparison) -> str:
    import json

    from harness.report.summary_json import plain

    return json.dumps({"schema_version": 1, **plain(found)}, indent=2)
