"""Where a target's pages come from: the embedded scraper's journal, or Prometheus.

Both give the same thing, pages with their times, so that everything after this point
does not know the difference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from harness.manifest import Manifest
from harness.observe.exposition import MetricsUnavailableError, Page, PageReader
from harness.observe.series import SeriesSource
from harness.observe.stored import read_stored, stored_down_t_s, stored_pages
from harness.records import Scrape
from harness.rundir import RunDir


@dataclass(frozen=True)
class ObservedPages:
    """All that is known of one target."""

    source: SeriesSource
    #: (monotonic s, page) of every scrape that could be read, in time order
    pages: tuple[tuple[float, Page], ...]
    failed_t_s: tuple[float, ...] = ()
    #: distinct, in the order in which they first occurred
    reasons: tuple[str, ...] = ()


def observed_pages(
    run: RunDir, manifest: Manifest, target: str, wanted: Collection[str]
) -> ObservedPages:
    """A target's pages from Prometheus where the run used it, else from the scraper.

    When Prometheus was used and has nothing of this target, the scraper's pages stand in
    and ``reasons`` starts with why.
    """
    stored = read_stored(run) if manifest.prometheus_url is not None else None
    if stored is not None and target not in stored.faults:
        pages = tuple(stored_pages(stored, target, manifest))
        if pages:
            down = tuple(stored_down_t_s(stored, target, manifest))
            reasons = ("Prometheus could not scrape it (up = 0)",) if down else ()
            return ObservedPages("prometheus", pages, down, reasons)
    scraped = scraped_pages(run, target, wanted)
    if manifest.prometheus_url is None:
        return scraped
    why = "no samples" if stored else "prometheus.json is missing or damaged"
    if stored is not None:
        why = stored.faults.get(target, why)
    return ObservedPages(
        scraped.source,
        scraped.pages,
        scraped.failed_t_s,
        (f"Prometheus: {why}; the embedded scraper's data is used", *scraped.reasons),
    )


def scraped_pages(run: RunDir, target: str, wanted: Collection[str]) -> ObservedPages:
    """A target's pages from the embedded scraper's journal."""
    reader = PageReader(wanted)
    pages: list[tuple[float, Page]] = []
    failed: list[float] = []
    reasons: dict[str, None] = {}
    for scrape in run.scrapes(target):
        try:
            pages.append((scrape.t_s, reader.read(_text_of(scrape))))
        except MetricsUnavailableError as problem:
            failed.append(scrape.t_s)
            reasons[str(problem)] = None
    return ObservedPages("scraper", tuple(pages), tuple(failed), tuple(reasons))


def _text_of(scrape: Scrape) -> str:
    if scrape.error is not None:
        raise MetricsUnavailableError(scrape.error)
    if scrape.status is not None and scrape.status != 200:
        raise MetricsUnavailableError(f"HTTP {scrape.status}")
    return scrape.text or ""
