"""One run, analysed: records, events and series in, verdicts and findings out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.analysis.admission import judge_admission
from harness.analysis.cell_facts import CellFacts
from harness.analysis.checks import cell_findings, underloaded
from harness.analysis.checks_client import frozen
from harness.analysis.checks_memory import lost_scrape_findings, source_findings
from harness.analysis.checks_open import short_of_rate, trace_findings
from harness.analysis.checks_run import (
    duplicate_findings,
    prompt_findings,
    run_findings,
    skipped_findings,
)
from harness.analysis.checks_stored import absent_findings, backend_findings, unsound_finding
from harness.analysis.client import measure_client
from harness.analysis.client_samples import ClientSamples, client_samples
from harness.analysis.confidence import request_spread
from harness.analysis.fits_run import fit_cells
from harness.analysis.foresee import with_forecasts
from harness.analysis.knee import judge_backend
from harness.analysis.latency import measure_latency, request_times
from harness.analysis.memory import measure_memory, shared_gpus
from harness.analysis.open_loop import measure_open, open_window, slot_free_s
from harness.analysis.reconcile_cells import RunCell, Theories, explained, run_cell
from harness.analysis.scenarios import scenario_figures
from harness.analysis.searched import searched_verdicts
from harness.analysis.server_ttft import measure_server_ttft
from harness.analysis.slo_evidence import wanted_share
from harness.analysis.soak import measure_soak
from harness.analysis.sound import SoundRecords, without_earlier
from harness.analysis.steady import find_steady
from harness.analysis.summary_types import CellFigures, Counts, RunSummary, SkippedCell, Window
from harness.analysis.table import CANCELLED, OUTCOMES, Bools, CellTable, TableBuilder, build_tables
from harness.analysis.tail import explain_tail
from harness.analysis.throughput import measure_throughput, prompt_tokens, uncounted
from harness.analysis.timeline import level_timeline
from harness.analysis.verdict_types import BackendVerdict
from harness.analysis.windows import (
    LevelMarks,
    counted_mask,
    level_marks,
    measure_window,
    redone,
    users_of,
)
from harness.manifest import BackendInfo, Manifest
from harness.observe.series import BackendSeries
from harness.plan.search_events import read_found
from harness.records import CellKey, Finding, RequestRecord, RunEvent
from harness.workload import Asks, Conversations, LengthMix


def analyse(
    manifest: Manifest,
    records: Iterable[RequestRecord],
    events: Iterable[RunEvent],
    series: Mapping[str, BackendSeries],
    damaged: Mapping[str, int] | None = None,
    absent: Mapping[str, str] | None = None,
    theories: Theories | None = None,
) -> RunSummary:
    """Analyse a run, whole or torn.

    ``records`` are read once, in a stream. ``damaged`` counts unreadable lines by file, and
    ``absent`` says of a file why nothing came of it; both are looked at after the records
    were read, so a reader may fill them meanwhile. ``theories`` say what a backend's model
    needs; without one counts what the backend states of itself.
    """
    kept_events = list(events)
    marks = level_marks(kept_events)
    kept_records = SoundRecords(without_earlier(records, redone(marks)))
    tables = build_tables(kept_records)
    samples = client_samples(kept_events)
    figures: list[CellFigures] = []
    cells: list[RunCell] = []
    findings = run_findings(manifest, kept_events, damaged or {}) + skipped_findings(marks)
    findings += absent_findings(absent or {}) + unsound_finding(kept_records.left_out)
    findings += backend_findings(manifest, marks, tables)
    findings += duplicate_findings(tables.values()) + trace_findings(manifest)
    for info in manifest.backends:
        findings += _backend_findings(manifest, info, tables, series.get(info.name))
    for cell in _cells(manifest, marks, tables):
        table = tables.get(cell) or TableBuilder(cell).build()
        info = manifest.backend(cell.backend)
        item, facts = _measure(
            manifest, info, table, _marks_of(cell, marks), series.get(cell.backend), samples
        )
        figures.append(item)
        cells.append(
            run_cell(manifest, info, table, item.window, series.get(cell.backend), theories or {})
        )
        findings += cell_findings(item, facts, series.get(cell.backend), manifest)
    found = read_found(kept_events)
    verdicts = searched_verdicts(_verdicts(manifest, figures, series), found, figures)
    return RunSummary(
        manifest=manifest,
        verdicts=with_forecasts(manifest, verdicts, figures, tables, series, theories or {}),
        cells=tuple(figures),
        findings=tuple(findings),
        shared_gpus=shared_gpus(series),
        skipped=tuple(
            SkippedCell(cell, mark.skipped) for cell, mark in marks.items() if mark.skipped
        ),
        soak=measure_soak(manifest, tables, marks, series),
        scenario=scenario_figures(manifest, figures, tables, series),
        reconciled=explained(cells),
        fits=fit_cells(cells),
        found=found,
    )


def _cells(
    manifest: Manifest, marks: Mapping[CellKey, LevelMarks], tables: Mapping[CellKey, CellTable]
) -> list[CellKey]:
    """Every cell that was started, by backend (in the manifest's order) and level."""
    order = {info.name: index for index, info in enumerate(manifest.backends)}
    started = {cell for cell, mark in marks.items() if mark.start_s is not None} | set(tables)
    return sorted(
        (cell for cell in started if cell.backend in order),
        key=lambda cell: (order[cell.backend], cell),
    )


def _marks_of(cell: CellKey, marks: Mapping[CellKey, LevelMarks]) -> LevelMarks:
    return marks.get(cell) or LevelMarks(users=users_of(cell))


def _backend_findings(
    manifest: Manifest,
    info: BackendInfo,
    tables: Mapping[CellKey, CellTable],
    series: BackendSeries | None,
) -> list[Finding]:
    own = [table for cell, table in tables.items() if cell.backend == info.name]
    return [
        *source_findings(info.name, info.kind, series),
        *lost_scrape_findings(info.name, series),
        *([] if manifest.workload.shares_prefixes else prompt_findings(info.name, own)),
    ]


def _measure(
    manifest: Manifest,
    info: BackendInfo,
    table: CellTable,
    marks: LevelMarks,
    series: BackendSeries | None,
    samples: ClientSamples,
) -> tuple[CellFigures, CellFacts]:
    asked = manifest.workload.open_loop
    window = measure_window(table, marks) if asked is None else open_window(table, marks)
    if isinstance(manifest.workload.asks, Conversations):
        # users think: most of them are not meant to be in flight
        window = replace(window, full_share=None, load_share=None)
    counted = counted_mask(table, window)
    times = request_times(table)
    counts = _count(table, counted)
    rates = measure_throughput(table, window, counted, times, manifest.slo)
    figures = CellFigures(
        cell=table.cell,
        window=window,
        counts=counts,
        latency=measure_latency(table, counted, times),
        throughput=rates,
        memory=measure_memory(table, window, series, info.kind, info.max_model_len),
        client=measure_client(
            table,
            window,
            counted,
            times,
            samples,
            None if asked is None else slot_free_s(table, asked.max_concurrency),
        ),
        admission=judge_admission(
            info, _usual_prompt(table, counted), window, counts, series, table.cell.output_tokens
        ),
        min_requests=_min_requests(manifest, table.cell),
        unjudged=None,
        timeline=level_timeline(table, window, series),
        server_ttft=measure_server_ttft(table, window, series),
        open_loop=None
        if asked is None
        else measure_open(table, window, counted, asked, marks.unsent),
        steady=find_steady(table, window, counted, times, series),
        spread=request_spread(table, window, counted, rates.slo_attainment),
        tail=explain_tail(info, table, window, counted, times, series, samples),
    )
    return replace(figures, unjudged=_unjudged(figures, window)), _facts(table, counted)


def _unjudged(figures: CellFigures, window: Window) -> str | None:
    """Why a level gives no verdict; None when it does."""
    if window.span is None:
        return "its window never opened"
    if window.closed_by != "event":
        return "the run ended before its window closed"
    if figures.client.bound:
        return "the client was the limit"
    if frozen(figures):
        return "the client stood still for too much of its window"
    if underloaded(figures):
        return "far fewer requests were in flight than asked for"
    if short_of_rate(figures):
        return "far fewer requests were sent than were due"
    if figures.open_loop is not None and figures.open_loop.ramp:
        return "its rate rises from start to end"
    if not figures.counts.ok + figures.counts.failed:
        return "no counted request ended"
    return None


def _count(table: CellTable, counted: Bools) -> Counts:
    codes = np.bincount(table.outcome[counted], minlength=len(OUTCOMES))
    cancelled = int(codes[CANCELLED])
    ok = int(codes[0])
    sent = int(codes.sum())
    return Counts(
        recorded=table.n,
        sent=sent,
        ok=ok,
        failed=sent - ok - cancelled,
        cancelled=cancelled,
        by_class=tuple(
            (name, int(count)) for name, count in zip(OUTCOMES[1:], codes[1:], strict=True) if count
        ),
        errors=table.errors,
        duplicates=table.duplicates,
        distinct_prompts=int(np.unique(table.prompt_key).size),
    )


def _usual_prompt(table: CellTable, counted: Bools) -> int:
    """The median prompt length as the server counted it: what the next prompt will need."""
    lengths = prompt_tokens(table)[counted]
    return int(np.median(lengths)) if lengths.size else table.cell.prompt_tokens


def _facts(table: CellTable, counted: Bools) -> CellFacts:
    good = counted & table.ok
    stated = good & (table.prompt_tokens >= 0)
    differ = stated & (table.prompt_tokens != table.asked_prompt)
    steps = np.abs(table.clock_step_s[counted])
    steps = steps[~np.isnan(steps)]
    return CellFacts(
        counted=int(good.sum()),
        ignored_events=int(table.ignored_events[counted].sum()),
        estimated=int((uncounted(table) & good).sum()),
        buffered=int((table.buffered & good).sum()),
        clock_steps=int(steps.size),
        largest_step_s=float(steps.max()) if steps.size else 0.0,
        prompt_mismatches=int(differ.sum()),
        prompt_counts=(
            (float(table.prompt_tokens[differ].min()), float(table.prompt_tokens[differ].max()))
            if differ.any()
            else None
        ),
    )


def _min_requests(manifest: Manifest, cell: CellKey) -> int | None:
    """How many counted requests the workload wanted at this level."""
    workload = manifest.workload
    wanted = dict(zip(workload.levels, workload.min_requests, strict=False))
    return wanted.get(cell.level)


def _verdicts(
    manifest: Manifest, figures: Sequence[CellFigures], series: Mapping[str, BackendSeries]
) -> tuple[BackendVerdict, ...]:
    """One verdict per backend and workload, in the order of the cells."""
    groups: dict[tuple[str, int, int, str], list[CellFigures]] = {}
    for item in figures:
        key = item.cell
        group = (key.backend, key.prompt_tokens, key.output_tokens, key.variant)
        groups.setdefault(group, []).append(item)
    pools = {name: found.pool for name, found in series.items()}
    return tuple(
        judge_backend(
            manifest.backend(name),
            cells,
            manifest.slo,
            pools.get(name),
            manifest.workload.loop,
            _unpredictable(manifest.workload.asks),
            wanted_share(manifest.workload),
            manifest.max_failure_rate,
        )
        for (name, *_), cells in groups.items()
    )


def _unpredictable(asks: Asks | None) -> str | None:
    """Why the arithmetic of requests of one length must not be used; None when it may."""
    if asks is None:
        return None
    if isinstance(asks, LengthMix):
        return "the requests have many lengths; a simulation of them stands in the table of its own"
    return "requests share what they begin with, and how much of that is kept is measured"
