"""From the run directory to one ``BackendSeries`` per backend.

Whether the samples came from the embedded scraper or from Prometheus makes no difference
after ``observed_pages``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from harness.manifest import BackendInfo, Manifest
from harness.observe import names as n
from harness.observe.aggregate import canonical_values, kv_pool, used_bytes
from harness.observe.backends import BackendKind, backend_kind
from harness.observe.dcgm import DeviceMemory, device_memory
from harness.observe.exposition import Page
from harness.observe.pages import observed_pages, scraped_pages
from harness.observe.process_memory import TARGET_SUFFIX, TREE_RSS
from harness.observe.series import BackendSeries, KvPool, Series
from harness.rundir import RunDir

_Points = dict[str, list[tuple[float, float]]]


def all_series(run: RunDir, manifest: Manifest | None = None) -> dict[str, BackendSeries]:
    """The series of every backend of a run, by name."""
    manifest = manifest or run.manifest()
    device = device_memory(run, manifest)
    return {info.name: _collect(run, info, manifest, device) for info in manifest.backends}


def backend_series(
    run: RunDir, info: BackendInfo, manifest: Manifest | None = None
) -> BackendSeries:
    """What was observed of one backend; empty, with the reasons, when nothing was."""
    manifest = manifest or run.manifest()
    return _collect(run, info, manifest, device_memory(run, manifest))


def _collect(
    run: RunDir, info: BackendInfo, manifest: Manifest, device: DeviceMemory
) -> BackendSeries:
    kind = backend_kind(info.kind)
    observed = observed_pages(run, manifest, info.name, kind.sample_names)
    pool = _pool(kind, info, (page for _, page in observed.pages))
    points = _points(kind, pool, observed.pages)
    failures = list(observed.reasons)
    if not observed.pages and kind.metrics_flag is not None and _no_page(observed.reasons):
        failures.append(
            f"{kind.title} has /metrics only when it is started with {kind.metrics_flag}"
        )
    _add_process_memory(run, info.name, points, failures)
    values = {name: Series.of(pairs) for name, pairs in points.items()}
    missing = [name for name in kind.required if name not in values] if observed.pages else []
    if info.name in device.per_backend:
        values[n.DEVICE_USED_BYTES] = device.per_backend[info.name]
    elif info.name in device.faults:
        failures.append(device.faults[info.name])
        missing.append(n.DEVICE_USED_BYTES)
    return BackendSeries(
        backend=info.name,
        source=observed.source,
        values=values,
        pool=pool,
        failed_t_s=np.array(observed.failed_t_s, dtype=np.float64),
        failures=tuple(dict.fromkeys(failures)),
        missing=tuple(missing),
        n_scrapes=len(observed.pages),
        shared_device=device.shared_by(info.name),
    )


def _pool(kind: BackendKind, info: BackendInfo, pages: Iterable[Page]) -> KvPool | None:
    """The pool as the pages state it, completed by the budget the server was started with.

    Bytes are never derived from the model's config: that is the prediction which the
    measured figure is held against.
    """
    pool: KvPool | None = None
    if kind.pool is not None:
        for page in pages:
            pool = kv_pool(kind.pool, page) or pool
    if pool is not None and pool.total_bytes is None and info.kv_budget_bytes is not None:
        return replace(pool, total_bytes=info.kv_budget_bytes)
    return pool


def _points(kind: BackendKind, pool: KvPool | None, pages: Iterable[tuple[float, Page]]) -> _Points:
    points: _Points = {}
    for t_s, page in pages:
        values = canonical_values(kind, page)
        if kind.paged and pool is not None:
            values.update(_paged_bytes(pool, values))
        for name, value in values.items():
            points.setdefault(name, []).append((t_s, value))
    return points


def _paged_bytes(pool: KvPool, values: Mapping[str, float]) -> dict[str, float]:
    """Bytes used, reserved and allowed in a pool that is allocated whole at the start."""
    found: dict[str, float] = {}
    usage = values.get(n.KV_USAGE_RATIO)
    if usage is None or pool.total_bytes is None:
        return found
    found[n.KV_RESERVED_BYTES] = found[n.KV_BUDGET_BYTES] = float(pool.total_bytes)
    used = used_bytes(pool, usage)
    if used is not None:
        found[n.KV_USED_BYTES] = used
    return found


def _no_page(reasons: Iterable[str]) -> bool:
    """Whether the server has refused the page, rather than stated a broken one."""
    known = list(reasons)
    return not known or any(reason.startswith("HTTP ") for reason in known)


def _add_process_memory(run: RunDir, name: str, points: _Points, failures: list[str]) -> None:
    """The process tree's memory, which says more than what one process says of itself."""
    observed = scraped_pages(run, name + TARGET_SUFFIX, {TREE_RSS})
    found = [(t_s, sample.value) for t_s, page in observed.pages for sample in page[TREE_RSS]]
    if found:
        points[n.PROCESS_RSS_BYTES] = found
    failures.extend(observed.reasons)
