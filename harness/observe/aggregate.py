"""From the samples of one page to one figure per canonical name, and to the KV pool.

Pure. Several label sets of a metric are one figure by the metric's rule, never "the last
one wins": several API server processes each write a gauge for the same engine under a
``pid`` label and only one of them is current (the largest: the others stay at 0), and a
data-parallel server writes each metric once per ``engine``. Ranks of one engine that each
write what all of them do together are such copies too (``BackendKind.replica_labels``),
and what a metric is broken down by beside its total is no further figure
(``breakdown_labels``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from harness.observe.backends import BackendKind, Metric, PoolLabels, combine
from harness.observe.exposition import LabelledValue, Page
from harness.observe.series import KvPool

_PID = "pid"


def canonical_values(kind: BackendKind, page: Page) -> dict[str, float]:
    """Canonical name -> figure of one page; what the page lacks is a missing key."""
    values: dict[str, float] = {}
    for metric in kind.metrics:
        samples = [
            sample
            for sample in _samples_of(metric, page)
            if not any(sample.labels.get(label) for label in kind.breakdown_labels)
        ]
        if samples:
            values[metric.canonical] = _figure(metric, samples, kind.replica_labels)
    return values


def _samples_of(metric: Metric, page: Page) -> Sequence[LabelledValue]:
    """The samples under the newest of the metric's names that the page has."""
    found = next((page[name] for name in metric.names if page.get(name)), ())
    if metric.only is None:
        return found
    label, value = metric.only
    return [sample for sample in found if sample.labels.get(label) == value]


def _figure(
    metric: Metric, samples: Sequence[LabelledValue], replica_labels: frozenset[str]
) -> float:
    if len(samples) == 1:
        return samples[0].value
    if metric.is_counter:
        # each process counts what itself did
        return combine("sum", _without_copies(samples, replica_labels))
    return combine(metric.rule, _without_copies(samples, replica_labels | {_PID}))


def _without_copies(samples: Sequence[LabelledValue], ignored: Collection[str]) -> list[float]:
    """The largest value of those that differ in nothing but ignored labels."""
    if not ignored:
        return [sample.value for sample in samples]
    by_labels: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        key = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ignored))
        by_labels[key] = max(sample.value, by_labels.get(key, sample.value))
    return list(by_labels.values())


def kv_pool(labels: PoolLabels, page: Page) -> KvPool | None:
    """The pool that a page's info metric states; None when the page has none."""
    samples = page.get(labels.metric)
    if not samples:
        return None
    engines = max(1, len({sample.labels.get("engine", "") for sample in samples}))
    stated = samples[0].labels

    def read(label: str | None) -> int | None:
        number = _whole_number(stated, label)
        if number is None or label not in labels.per_engine:
            return number
        return number * engines

    return KvPool(
        total_bytes=read(labels.total_bytes),
        num_blocks=read(labels.num_blocks),
        block_size=read(labels.block_size),
        size_tokens=read(labels.size_tokens),
        engines=engines,
        utilization=_share(stated, labels.utilization),
        dtype=stated.get(labels.dtype) if labels.dtype is not None else None,
    )


def _whole_number(stated: Mapping[str, str], label: str | None) -> int | None:
    """A label's value as a number; None when it is absent, "None" or no number."""
    try:
        return int(stated[label]) if label is not None else None
    except (KeyError, ValueError):
        return None


def _share(stated: Mapping[str, str], label: str | None) -> float | None:
    """A label's value as a share above 0, at most 1; None when it is none."""
    try:
        share = float(stated[label]) if label is not None else 0.0
    except (KeyError, ValueError):
        return None
    return share if 0 < share <= 1 else None


def used_bytes(pool: KvPool, usage_ratio: float) -> float | None:
    """Bytes of the blocks that hold tokens; None when the pool's size is not known.

    vLLM's usage is ``1 - free / (num_blocks - 1)`` (block_pool.get_usage, 0.32): its null
    block is neither free nor used. The bytes of a block are the byte budget over the
    block count: what the server was given, never what a formula predicts.
    """
    if pool.block_bytes is None or pool.usable_blocks is None:
        return None
    return usage_ratio * pool.usable_blocks * pool.block_bytes
