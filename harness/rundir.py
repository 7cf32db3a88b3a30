"""The run directory: the only place where load and analysis meet.

::

    <results>/<run id>/
        manifest.json               what was run; written first, replaced at the end
        records.jsonl               one RequestRecord a line
        events.jsonl                one RunEvent a line
        scrapes/<target>.jsonl.gz   one Scrape a line, one gzip member a line
        prometheus.json             series fetched from a Prometheus server, if one was used
        summary.json report.md report.html    made by ``kvknee report``

Journals are append-only and written line by line, so a crash loses at most the last
line. Readers skip a torn last line and count any other line that does not decode.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.errors import JournalError, ResultsDirError, RunDirError
from harness.records import SCHEMA_VERSION, Manifest, RequestRecord, RunEvent, Scrape, wire_bytes

T = TypeVar("T", bound=msgspec.Struct)

_SLICE_BYTES = 65_536


class Journal:
    """An append-only file of JSON lines; ``append`` is one ``write`` call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from error

    def append(self, item: msgspec.Struct) -> None:
        """Write one line; raises JournalError when it could not be written whole."""
        self._write(wire_bytes(item))

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        if written != len(data):
            raise JournalError(f"{self.path}: only {written} of {len(data)} bytes written")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class GzipJournal(Journal):
    """A journal whose every line is a gzip member of its own: ``zcat`` reads it."""

    def append(self, item: msgspec.Struct) -> None:
        """Write one compressed line; raises JournalError as ``Journal.append`` does."""
        packer = zlib.compressobj(level=1, wbits=31)
        self._write(packer.compress(wire_bytes(item)) + packer.flush())


class RunDir:
    """Paths, writers and readers of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: lines that did not decode, by file name; filled by the readers
        self.damaged: dict[str, int] = {}

    @classmethod
    def create(cls, results_dir: Path, run_id: str) -> RunDir:
        """Make ``results_dir/run_id``; raises ResultsDirError with what is wrong."""
        path = results_dir / run_id
        try:
            results_dir.mkdir(parents=True, exist_ok=True)
            number = 1
            while path.exists():
                number += 1
                path = results_dir / f"{run_id}-{number}"
            (path / "scrapes").mkdir(parents=True)
        except OSError as error:
            raise ResultsDirError(
                f"--results-dir: {results_dir} cannot be written ({error.strerror}); "
                "name a folder that you may write to"
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run directory; raises RunDirError when it is none."""
        if not (path / "manifest.json").is_file():
            raise RunDirError(
                f"{path}: no run directory (manifest.json is missing); "
                "name a folder that a scenario made, such as results/<run id>"
            )
        return cls(path)

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace ``manifest.json`` whole or not at all; raises JournalError."""
        self.write_file("manifest.json", msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")

    def write_file(self, name: str, data: bytes) -> Path:
        """Replace one file of the run directory whole or not at all; raises JournalError."""
        target = self.path / name
        draft = target.with_name(target.name + ".tmp")
        try:
            draft.write_bytes(data)
            draft.replace(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise JournalError(f"{target}: {error.strerror}") from error
        return target

    def manifest(self) -> Manifest:
        """The manifest; raises RunDirError for a damaged or newer one."""
        path = self.path / "manifest.json"
        try:
            raw = path.read_bytes()
            version = msgspec.json.decode(raw, type=_Versioned).schema_version
            if version > SCHEMA_VERSION:
                raise RunDirError(
                    f"{path}: schema {version} is newer than this kvknee knows "
                    f"({SCHEMA_VERSION}); use the kvknee that wrote it"
                )
            return msgspec.json.decode(raw, type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise RunDirError(f"{path}: damaged ({error})") from error

    def records_journal(self) -> Journal:
        """Where the load writes its records."""
        return Journal(self.path / "records.jsonl")

    def events_journal(self) -> Journal:
        """Where the load writes its events."""
        return Journal(self.path / "events.jsonl")

    def scrape_path(self, target: str) -> Path:
        """Where the scrapes of one target lie."""
        return self.path / "scrapes" / f"{target}.jsonl.gz"

    def records(self) -> Iterator[RequestRecord]:
        """All records in the order in which they were written."""
        return self._read_lines(self.path / "records.jsonl", RequestRecord)

    def events(self) -> Iterator[RunEvent]:
        """All events in the order in which they were written."""
        return self._read_lines(self.path / "events.jsonl", RunEvent)

    def scrapes(self, target: str) -> Iterator[Scrape]:
        """All scrapes of one target; none when it was never scraped."""
        path = self.scrape_path(target)
        if not path.is_file():
            return
        decoder = msgspec.json.Decoder(Scrape)
        for member in _gzip_members(path.read_bytes()):
            try:
                yield decoder.decode(member)
            except msgspec.MsgspecError:
                self._count_damage(path.name)

    def _read_lines(self, path: Path, kind: type[T]) -> Iterator[T]:
        if not path.is_file():
            return
        decoder = msgspec.json.Decoder(kind)
        with path.open("rb") as lines:
            for line in lines:
                try:
                    yield decoder.decode(line)
                except msgspec.MsgspecError:
                    # a last line without its newline is a write that a crash cut short
                    if line.endswith(b"\n"):
                        self._count_damage(path.name)

    def _count_damage(self, name: str) -> None:
        self.damaged[name] = self.damaged.get(name, 0) + 1


class _Versioned(msgspec.Struct):
    schema_version: int


def _gzip_members(data: bytes) -> Iterator[bytes]:
    """Each gzip member's content, ending silently at a torn last one."""
    view = memoryview(data)
    start = 0
    while start < len(view):
        member = _gzip_member(view, start)
        if member is None:
            return
        content, start = member
        yield content


def _gzip_member(view: memoryview, start: int) -> tuple[bytes, int] | None:
    """One member's content and where the next begins; None when it is torn.

    Fed in slices: a decompressor given all the rest copies it as unused data, which makes
    a long run's scrapes quadratic to read.
    """
    reader = zlib.decompressobj(wbits=31)
    parts = []
    position = start
    try:
        while not reader.eof and position < len(view):
            piece = view[position : position + _SLICE_BYTES]
            parts.append(reader.decompress(piece))
            position += len(piece)
    except zlib.error:
        return None
    return (b"".join(parts), position - len(reader.unused_data)) if reader.eof else None
