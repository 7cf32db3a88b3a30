"""The verb ``reconcile``: a run's measured memory held against what theory says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from harness.analysis.fit_types import Fit
    from harness.analysis.reconcile_cells import RunCell


@click.command()
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--model-config",
    metavar="MODEL",
    help="config.json, folder or hub id of the model.  [default: the config that the run kept]",
)
@click.option(
    "--kv-dtype",
    help="The dtype of the cache.  [default: what the server states, else the model's]",
)
@click.option(
    "--tp",
    type=click.IntRange(1, 2**16),
    default=1,
    show_default=True,
    help="Tensor-parallel ranks; all bytes are those of one.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
def reconcile(
    run_dirs: tuple[Path, ...],
    model_config: str | None,
    kv_dtype: str | None,
    tp: int,
    as_json: bool,
) -> None:
    """Explain the memory of a run: needed -> used -> reserved -> device.

    For each level and backend every difference has a name (block rounding, padding, the rest of
    a slot, free blocks, ...) and bytes; what has none is called unexplained, in bytes and
    percent. Predicted and measured share no source: needed is the tokens that the client's own
    records show to be held, times what the model's config says of a token; used and reserved
    are the server's own bytes, read at the same moments. What was not measured is absent.

    Below the tables stand laws fitted over the run, with 95 % confidence intervals: KV bytes per
    token and per request against theory, TTFT against prompt length (a + b n + c n^2), TPOT
    against context length, and without a cache the growth per token. Several RUN_DIRs are
    explained one by one and fitted together: runs of different lengths make one fit.

    \b
    kvknee reconcile                            the newest run under ./results
    kvknee reconcile results/20260101-000000-concurrency
    kvknee reconcile results/a results/b results/c --json
    kvknee reconcile results/a --model-config org/name --kv-dtype fp8 --tp 2

    Exit codes: 0 done, whatever stays unexplained; 2 bad input.

    \f
    Raises KvkneeError for bad input.
    """
    from harness.analysis.fits_run import fit_cells
    from harness.cli import newest_run

    paths = run_dirs or (newest_run(Path("results")),)
    found = [(path, _cells(path, model_config, kv_dtype, tp)) for path in paths]
    fits = fit_cells([cell for _, cells in found for cell in cells])
    if as_json:
        click.echo(_as_json(found, fits))
    else:
        _print(found, fits)


def _cells(
    path: Path, model_config: str | None, kv_dtype: str | None, tp: int
) -> tuple[RunCell, ...]:
    """One run, explained; raises KvkneeError for one that cannot be."""
    from harness.analysis.reconcile_cells import cells_of_run
    from harness.errors import OptionError
    from harness.model_source import read_model
    from harness.observe.collect import all_series
    from harness.report.theories import run_theories
    from harness.rundir import RunDir

    run = RunDir.open(path)
    manifest = run.manifest()
    given = read_model(model_config).config if model_config is not None else None
    theories = run_theories(run, manifest, given, kv_dtype, tp)
    if not theories and (kv_dtype is not None or tp != 1):
        option, value = ("--kv-dtype", kv_dtype) if kv_dtype is not None else ("--tp", tp)
        raise OptionError(option, value, "--model-config beside it: the run kept no model config")
    return cells_of_run(manifest, run.records(), run.events(), all_series(run, manifest), theories)


def _print(found: list[tuple[Path, tuple[RunCell, ...]]], fits: tuple[Fit, ...]) -> None:
    from rich.console import Console

    from harness.analysis.reconcile_cells import explained
    from harness.report.reconcile_text import print_explained, print_fits

    console = Console()
    for path, cells in found:
        if len(found) > 1:
            console.print(f"\n{path.name}", markup=False)
        if not cells:
            console.print("no level was measured", markup=False)
        print_explained(explained(cells), console)
    print_fits(fits, console)


def _as_json(found: list[tuple[Path, tuple[RunCell, ...]]], fits: tuple[Fit, ...]) -> str:
    import json

    from harness.report.summary_json import plain, reconciled_object

    runs = [
        {"run": path.name, "cells": [reconciled_object(cell.explained) for cell in cells]}
        for path, cells in found
    ]
    return json.dumps({"runs": runs, "fits": [plain(fit) for fit in fits]}, indent=2)
