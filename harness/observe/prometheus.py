"""A Prometheus server as the source of a run's series.

Raw samples are asked for, not a stepped query: an instant query of a range selector,
``metric{...}[30m]`` at the end time, returns every sample that was scraped with its own
timestamp. ``query_range`` would return values interpolated onto its own steps, which
repeats a sample up to five minutes after its target died and hides when it was read.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from harness.manifest import Manifest
from harness.observe import dcgm
from harness.observe.backends import backend_kind
from harness.observe.birth import Birth
from harness.observe.prometheus_api import (
    ApiClient,
    Labels,
    PrometheusFaultError,
    clock_skew_s,
    matrix,
    quoted,
    without_credentials,
)
from harness.observe.stored import UP, StoredPrometheus, StoredSeries, write_stored
from harness.rundir import RunDir

#: one query asks for at most this much, so that a long run stays below the server's limits
CHUNK_S = 1800.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 (compared, not bound)


@dataclass(frozen=True)
class ScrapeTarget:
    """How Prometheus labels one of our targets."""

    job: str
    instance: str


@dataclass(frozen=True)
class PrometheusServer:
    """A Prometheus server that scrapes our targets."""

    #: as given, credentials included: never to be recorded
    url: str
    version: str | None
    targets: Mapping[str, ScrapeTarget]

    @property
    def public_url(self) -> str:
        """The URL without credentials."""
        return without_credentials(self.url)


def find(
    url: str,
    targets: Mapping[str, str],
    timeout_s: float = 2.0,
    transport: httpx.BaseTransport | None = None,
) -> PrometheusServer | None:
    """The server at ``url`` when it answers and scrapes all of ``targets``, else None."""
    try:
        return probe(url, targets, timeout_s, transport)
    except PrometheusFaultError:
        return None


def probe(
    url: str,
    targets: Mapping[str, str],
    timeout_s: float = 5.0,
    transport: httpx.BaseTransport | None = None,
) -> PrometheusServer:
    """As ``find``, but raises PrometheusFaultError with the reason.

    ``targets`` are name -> URL of the metrics page. A target of Prometheus is ours when
    it is up and has the same host and port; behind a container network, where hosts are
    named otherwise, when it carries the label ``backend="<name>"`` and is the same process:
    it says that it started at the same moment or, where nobody says, it has the same port.
    """
    with ApiClient(url, timeout_s, transport) as client:
        data = client.get("api/v1/targets", state="active")
        active = data.get("activeTargets", []) if isinstance(data, dict) else []
        found: dict[str, ScrapeTarget] = {}
        for name, target_url in targets.items():
            birth = Birth(target_url, timeout_s, transport)
            match = _match(name, target_url, active, partial(birth.is_of, client))
            if match is not None:
                found[name] = match
        lost = [
            f"{name} ({without_credentials(target)})"
            for name, target in targets.items()
            if name not in found
        ]
        if lost:
            raise PrometheusFaultError(
                f"Prometheus at {without_credentials(url)} does not scrape {', '.join(lost)} "
                "or sees it down"
            )
        return PrometheusServer(url, _version(client), found)


def _version(client: ApiClient) -> str | None:
    try:
        data = client.get("api/v1/status/buildinfo")
    except PrometheusFaultError:
        # servers that speak Prometheus' API without being one lack it
        return None
    return str(data["version"]) if isinstance(data, dict) and "version" in data else None


def _match(
    name: str,
    url: str,
    active: Iterable[Mapping[str, Any]],
    is_same: Callable[[str, str], bool | None],
) -> ScrapeTarget | None:
    """Ours among the targets that are up; the first by job, should two scrape one page.

    ``is_same``: whether a target, by job and instance, is our process; None when not known.
    """
    by_address: list[tuple[str, str]] = []
    #: a target with our label -> whether it has our port
    labelled: dict[tuple[str, str], bool] = {}
    for target in active:
        labels = target.get("labels", {})
        if target.get("health") != "up" or not {"job", "instance"} <= labels.keys():
            continue
        key = (labels["job"], labels["instance"])
        scraped = _address(str(target.get("scrapeUrl", "")))
        if scraped == _address(url):
            by_address.append(key)
        elif labels.get("backend") == name:
            labelled[key] = scraped[1] == _address(url)[1]
    if by_address:
        return ScrapeTarget(*min(by_address))
    for key, same_port in sorted(labelled.items()):
        same = is_same(*key)
        if same or (same is None and same_port):
            return ScrapeTarget(*key)
    return None


def _address(url: str) -> tuple[str, int | None]:
    """(host, port), with all names of this machine as one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ("", None)
    default = 443 if parts.scheme == "https" else 80
    return ("loopback" if host in _LOOPBACK else host, port or default)


def fetch_run(
    run: RunDir,
    manifest: Manifest,
    server: PrometheusServer,
    *,
    wall_clock: Callable[[], float] = time.time,
    timeout_s: float = 30.0,
    transport: httpx.BaseTransport | None = None,
) -> dict[str, str]:
    """Store a run's samples as ``prometheus.json``; target -> fault, empty when all is well.

    The run lasts from the manifest's anchor to its end, or to now while it has none. A
    target with a fault keeps the embedded scraper's data. Raises JournalError when the
    file cannot be written.
    """
    start_wall_s = manifest.t0_wall_s
    if manifest.t_end_s is not None:
        end_wall_s = start_wall_s + manifest.t_end_s - manifest.t0_s
    else:
        end_wall_s = wall_clock()
    skew_s, series, faults = 0.0, {}, {}
    with ApiClient(server.url, timeout_s, transport) as client:
        try:
            skew_s = clock_skew_s(client, wall_clock)
        except PrometheusFaultError as fault:
            faults = dict.fromkeys(server.targets, str(fault))
        for name, target in server.targets.items():
            if name in faults:
                continue
            selector = _selector(name, target, manifest)
            try:
                series[name] = tuple(
                    _raw_samples(client, selector, start_wall_s + skew_s, end_wall_s + skew_s)
                )
            except PrometheusFaultError as fault:
                faults[name] = str(fault)
    write_stored(
        run,
        StoredPrometheus(
            url=server.public_url,
            version=server.version,
            start_wall_s=start_wall_s,
            end_wall_s=end_wall_s,
            clock_skew_s=skew_s,
            targets=series,
            faults=faults,
        ),
    )
    return faults


def _selector(name: str, target: ScrapeTarget, manifest: Manifest) -> str:
    if name == dcgm.TARGET:
        names = {dcgm.FB_USED}
    else:
        names = set(backend_kind(manifest.backend(name).kind).sample_names)
    pattern = "|".join(re.escape(item) for item in sorted(names | {UP}))
    return (
        f"{{__name__=~{quoted(pattern)},job={quoted(target.job)},"
        f"instance={quoted(target.instance)}}}"
    )


def _raw_samples(
    client: ApiClient, selector: str, start_wall_s: float, end_wall_s: float
) -> Iterator[StoredSeries]:
    """All samples of the selector's series with start <= t <= end, in chunks of time."""
    found: dict[Labels, dict[float, float]] = {}
    done_s = start_wall_s
    while done_s < end_wall_s:
        chunk_end_s = min(done_s + CHUNK_S, end_wall_s)
        # one more millisecond at each end: times are sent in whole ones
        length_ms = math.ceil((chunk_end_s - done_s) * 1000) + 2
        data = client.get(
            "api/v1/query",
            query=f"{selector}[{length_ms}ms]",
            time=f"{chunk_end_s + 0.001:.3f}",
        )
        done_s = chunk_end_s
        for labels, samples in matrix(data):
            # neighbouring chunks overlap by a moment and may share a sample
            found.setdefault(labels, {}).update(samples)
    for labels, by_time in found.items():
        times = sorted(t for t in by_time if start_wall_s <= t <= end_wall_s)
        yield StoredSeries(
            name=dict(labels)["__name__"],
            labels={key: value for key, value in labels if key != "__name__"},
            t_wall_s=tuple(times),
            v=tuple(by_time[t] for t in times),
        )
