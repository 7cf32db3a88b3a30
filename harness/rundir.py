"""The run directory: the only place where load and analysis meet.

::

    <results>/<run id>/
        manifest.json               what was run; written first, replaced at the end
        records.jsonl               one RequestRecord a line
        events.jsonl                one RunEvent a line
        scrapes/<target>.jsonl.gz   one Scrape a line, one gzip member a line
        configs/<backend>.json      the config of the model that a backend serves, where it is known
        prometheus.json             series fetched from a Prometheus server, if one was used
        summary.json report.md report.html    made by ``kvknee report``

Journals are append-only and written line by line, so a crash loses at most the last
line. Readers skip a torn last line and count any other line that does not decode.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.errors import JournalError, ResultsDirError, RunDirError, shortened
from harness.journal_bytes import begins_whole, gzip_members
from harness.manifest import Manifest
from harness.records import SCHEMA_VERSION, RequestRecord, RunEvent, Scrape, wire_bytes

T = TypeVar("T", bound=msgspec.Struct)

#: what a report writes last: with it there, the report is whole
LAST_REPORT = "report.html"

_CONFIGS = "configs"
_MISSING, _EMPTY = "is missing", "is empty"
#: the end of the year 9999, the last that a date can be made of
_LAST_WALL_S = 253_402_300_799.0
#: a file name may have 255 bytes; the rest is for what scrapes put behind a backend's name
_MOST_NAME_BYTES = 200
#: of a path in an error message
_MOST_SHOWN = 120


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

    def append_lines(self, lines: bytes) -> None:
        """Write whole lines as they are; raises JournalError as ``append`` does."""
        self._write(lines)

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}") from error
        if written != len(data):
            # a later line must not be joined to the half of this one
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
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


def replace_file(target: Path, data: bytes) -> Path:
    """Replace one file whole or not at all; raises JournalError."""
    draft = target.with_name(target.name + ".tmp")
    try:
        draft.write_bytes(data)
        draft.replace(target)
    except OSError as error:
        # what is in the way may be no file of ours
        with contextlib.suppress(OSError):
            draft.unlink()
        raise JournalError(f"{target}: {error.strerror}") from error
    return target


class RunDir:
    """Paths, writers and readers of one run directory."""

    def __init__(self, path: Path, since: Mapping[str, int] | None = None) -> None:
        """``since``: bytes of its journals that are passed over, as ``written`` gave them."""
        self.path = path
        self._since = since or {}
        #: lines that did not decode, by file name; filled by the readers
        self.damaged: dict[str, int] = {}
        #: why nothing came of a journal, by file name; filled by the readers
        self.absent: dict[str, str] = {}

    @classmethod
    def create(cls, results_dir: Path, run_id: str) -> RunDir:
        """Make ``results_dir/run_id``; raises ResultsDirError with what is wrong."""
        path = results_dir / run_id
        try:
            results_dir.mkdir(parents=True, exist_ok=True)
            number = 1
            while not _made(path):
                number += 1
                path = results_dir / f"{run_id}-{number}"
            (path / "scrapes").mkdir()
        except OSError as error:
            raise ResultsDirError(
                f"--results-dir: {results_dir} cannot be written ({error.strerror}); "
                "name a folder that you may write to"
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run directory; raises RunDirError when it is none."""
        try:
            found = (path / "manifest.json").is_file()
            why = "manifest.json is missing"
        except OSError as error:
            # a path that is too long, or a folder that may not be entered
            found, why = False, error.strerror or str(error)
        if not found:
            raise RunDirError(
                f"{shortened(str(path), _MOST_SHOWN)}: no run directory ({why}); "
                "name a folder that a scenario made, such as results/<run id>"
            )
        return cls(path)

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace ``manifest.json`` whole or not at all; raises JournalError."""
        self.write_file("manifest.json", msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")

    def write_file(self, name: str, data: bytes) -> Path:
        """Replace one file of the run directory whole or not at all; raises JournalError."""
        return replace_file(self.path / name, data)

    def manifest(self) -> Manifest:
        """The manifest; raises RunDirError for a damaged one or an unknown schema."""
        path = self.path / "manifest.json"
        try:
            raw = path.read_bytes()
            version = msgspec.json.decode(raw, type=_Versioned).schema_version
            if version > SCHEMA_VERSION:
                raise RunDirError(
                    f"{path}: schema {version} is newer than this kvknee knows "
                    f"({SCHEMA_VERSION}); use the kvknee that wrote it"
                )
            if version < 1:
                raise RunDirError(
                    f"{path}: damaged (there is no schema {version}; expected 1 to "
                    f"{SCHEMA_VERSION})"
                )
            manifest = msgspec.json.decode(raw, type=Manifest)
        except (OSError, RecursionError, msgspec.MsgspecError) as error:
            raise RunDirError(f"{path}: damaged ({error})") from error
        flaw = manifest_flaw(manifest)
        if flaw is not None:
            raise RunDirError(f"{path}: damaged ({flaw})")
        return manifest

    def records_journal(self) -> Journal:
        """Where the load writes its records."""
        return Journal(self.path / "records.jsonl")

    def events_journal(self) -> Journal:
        """Where the load writes its events."""
        return Journal(self.path / "events.jsonl")

    def scrape_path(self, target: str) -> Path:
        """Where the scrapes of one target lie."""
        return self.path / "scrapes" / f"{target}.jsonl.gz"

    def write_model_config(self, backend: str, config: Mapping[str, object]) -> None:
        """Keep the config of a backend's model, without its private fields; raises JournalError."""
        public = {key: value for key, value in config.items() if not key.startswith("_")}
        try:
            (self.path / _CONFIGS).mkdir(exist_ok=True)
        except OSError as error:
            raise JournalError(f"{self.path / _CONFIGS}: {error.strerror}") from error
        self.write_file(f"{_CONFIGS}/{backend}.json", msgspec.json.encode(public) + b"\n")

    def model_config(self, backend: str) -> dict[str, Any] | None:
        """The config of a backend's model; None when it was not kept or is damaged."""
        path = self.path / _CONFIGS / f"{backend}.json"
        if _no_content(path) is not None:
            return None
        try:
            found = msgspec.json.decode(path.read_bytes())
        except (OSError, RecursionError, msgspec.MsgspecError):
            found = None
        if not isinstance(found, dict):
            self._count_damage(path.name)
            return None
        return found

    def written(self) -> dict[str, int]:
        """How long each journal is now, by file name; a reader may begin there."""
        places = [self.path / "records.jsonl", self.path / "events.jsonl"]
        places += (self.path / "scrapes").glob("*.jsonl.gz")
        return {place.name: place.stat().st_size for place in places if place.is_file()}

    def records(self) -> Iterator[RequestRecord]:
        """All records in the order in which they were written."""
        return self._read_lines(self.path / "records.jsonl", RequestRecord)

    def events(self) -> Iterator[RunEvent]:
        """All events in the order in which they were written."""
        return self._read_lines(self.path / "events.jsonl", RunEvent)

    def scrapes(self, target: str) -> Iterator[Scrape]:
        """All scrapes of one target; none when it was never scraped."""
        path = self.scrape_path(target)
        why = _no_content(path)
        if why is not None:
            # a target that never answered is said where its figures would stand
            if why not in (_MISSING, _EMPTY):
                self.absent[path.name] = why
            return
        decoder = msgspec.json.Decoder(Scrape)
        with path.open("rb") as journal:
            journal.seek(self._since.get(path.name, 0))
            data = journal.read()
        for member in gzip_members(data):
            try:
                yield decoder.decode(member or b"")
            except msgspec.MsgspecError:
                self._count_damage(path.name)

    def _read_lines(self, path: Path, kind: type[T]) -> Iterator[T]:
        why = _no_content(path)
        if why is not None:
            self.absent[path.name] = why
            return
        decoder = msgspec.json.Decoder(kind)
        with path.open("rb") as lines:
            lines.seek(self._since.get(path.name, 0))
            for line in lines:
                try:
                    yield decoder.decode(line)
                except msgspec.MsgspecError:
                    # a last line without its newline is a write that a crash cut short
                    if line.endswith(b"\n") or begins_whole(line):
                        self._count_damage(path.name)

    def _count_damage(self, name: str) -> None:
        self.damaged[name] = self.damaged.get(name, 0) + 1


class _Versioned(msgspec.Struct):
    schema_version: int


def manifest_flaw(manifest: Manifest) -> str | None:
    """What in a manifest cannot be true, although it decodes; None when nothing is.

    Names of backends become names of files, so what a path would make of them counts.
    """
    if not 0 <= manifest.t0_wall_s <= _LAST_WALL_S:
        return f"t0_wall_s {manifest.t0_wall_s:g} is no time of day"
    names = [info.name for info in manifest.backends]
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            return f"{shortened(name)!r} is no name of a backend"
        if len(name.encode()) > _MOST_NAME_BYTES:
            return f"the name of a backend has {len(name)} characters"
    if len(set(names)) < len(names):
        return "two backends have one name"
    return None


def _made(path: Path) -> bool:
    """Make a folder; False when it is there, perhaps made by another run a moment ago."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _no_content(path: Path) -> str | None:
    """Why a journal has nothing to read, in words that follow its name; None when it has."""
    try:
        # looked at first: a pipe would be waited for
        if not stat.S_ISREG(path.stat().st_mode):
            return "is no file"
        with path.open("rb") as file:
            return None if file.read(1) else _EMPTY
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror})"
