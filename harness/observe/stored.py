"""``prometheus.json``: what was fetched from a Prometheus server, as it came.

Timestamps are Prometheus' own, in wall seconds. They become monotonic seconds by the
manifest's anchor, which read both clocks together, after the difference between the two
machines' wall clocks was taken off.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.manifest import Manifest
from harness.observe.exposition import LabelledValue, Page
from harness.rundir import RunDir

FILE_NAME = "prometheus.json"
UP = "up"


class StoredSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One labelled series: raw samples, not interpolated; both arrays of shape (n,)."""

    name: str
    labels: dict[str, str]
    t_wall_s: tuple[float, ...]
    v: tuple[float, ...]


class StoredPrometheus(msgspec.Struct, frozen=True, kw_only=True):
    """All that one run took from a Prometheus server."""

    #: without credentials
    url: str
    version: str | None
    start_wall_s: float
    end_wall_s: float
    #: Prometheus' wall clock minus ours
    clock_skew_s: float
    #: target name -> its series, that of ``up`` included
    targets: dict[str, tuple[StoredSeries, ...]]
    #: target name -> why its series are not here
    faults: dict[str, str]


def write_stored(run: RunDir, stored: StoredPrometheus) -> None:
    """Put ``prometheus.json`` into the run directory; raises JournalError."""
    run.write_file(FILE_NAME, msgspec.json.encode(stored) + b"\n")


def read_stored(run: RunDir) -> StoredPrometheus | None:
    """What was fetched; None when nothing was, or the file is damaged."""
    path = run.path / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredPrometheus)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        run.damaged[FILE_NAME] = run.damaged.get(FILE_NAME, 0) + 1
        return None


def stored_pages(
    stored: StoredPrometheus, target: str, manifest: Manifest
) -> Iterator[tuple[float, Page]]:
    """(monotonic s, page) in time order: the samples of one scrape share a timestamp."""
    pages: dict[float, dict[str, list[LabelledValue]]] = {}
    for series in stored.targets.get(target, ()):
        if series.name == UP:
            continue
        for t_wall_s, value in zip(series.t_wall_s, series.v, strict=True):
            page = pages.setdefault(t_wall_s, {})
            page.setdefault(series.name, []).append(LabelledValue(series.labels, value))
    for t_wall_s in sorted(pages):
        yield monotonic_s(t_wall_s, stored, manifest), pages[t_wall_s]


def stored_down_t_s(stored: StoredPrometheus, target: str, manifest: Manifest) -> list[float]:
    """When Prometheus could not scrape the target, in monotonic seconds."""
    return sorted(
        monotonic_s(t_wall_s, stored, manifest)
        for series in stored.targets.get(target, ())
        if series.name == UP
        for t_wall_s, value in zip(series.t_wall_s, series.v, strict=True)
        if value == 0
    )


def monotonic_s(t_wall_s: float, stored: StoredPrometheus, manifest: Manifest) -> float:
    """A timestamp of Prometheus as monotonic seconds of the machine that sent the load."""
    return t_wall_s - stored.clock_skew_s - manifest.t0_wall_s + manifest.t0_s
