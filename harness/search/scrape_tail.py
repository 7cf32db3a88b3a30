"""The newest pages of a target while the scraper still writes its journal."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from harness.journal_bytes import gzip_members, whole_members_bytes
from harness.observe.exposition import MetricsUnavailableError, Page, PageReader
from harness.records import Scrape


class ScrapeTail:
    """Reads on where it stopped; one page costs about a millisecond."""

    def __init__(self, path: Path, wanted: Collection[str]) -> None:
        """``wanted``: names of the samples that are needed."""
        self._path = path
        self._pages = PageReader(wanted)
        self._decoder = msgspec.json.Decoder(Scrape)
        self._at = 0

    def skip(self) -> None:
        """Pass over what is there already."""
        self._at = self._size()

    def read(self) -> list[tuple[float, Page]]:
        """(monotonic s, page) of what was written since; failed scrapes are left out."""
        if self._size() <= self._at:
            return []
        with self._path.open("rb") as journal:
            journal.seek(self._at)
            data = journal.read()
        whole = whole_members_bytes(data)
        self._at += whole
        found = [self._page(member) for member in gzip_members(data[:whole])]
        return [item for item in found if item is not None]

    def _page(self, member: bytes | None) -> tuple[float, Page] | None:
        try:
            scrape = self._decoder.decode(member or b"")
            page = self._pages.read(scrape.text or "")
        except (msgspec.MsgspecError, MetricsUnavailableError):
            return None
        return (scrape.t_s, page) if scrape.error is None else None

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.is_file() else 0
