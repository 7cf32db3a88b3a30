"""All that a night is shown as: ``write`` makes the files, ``terminal.show`` prints it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.errors import JournalError
from harness.nightly.night_types import Night
from harness.nightly.outputs.html import html_night
from harness.nightly.outputs.junit import junit_bytes
from harness.nightly.outputs.markdown import markdown_night
from harness.nightly.outputs.night_json import night_bytes
from harness.nightly.outputs.openmetrics import openmetrics_night
from harness.rundir import replace_file

#: In the order they are made: the page, which takes longest, comes last.
FILES: dict[str, Callable[[Night], bytes]] = {
    "night.json": night_bytes,
    "night.xml": junit_bytes,
    "night.md": lambda night: markdown_night(night).encode(),
    "night.om": lambda night: openmetrics_night(night).encode(),
    "night.html": lambda night: html_night(night).encode(),
}


def write(night: Night, folder: Path) -> tuple[Path, ...]:
    """Write all files, each whole or not at all, and return their paths.

    Raises JournalError that names the first one that could not be written.
    """
    return tuple(_write(folder, name, make(night)) for name, make in FILES.items())


def _write(folder: Path, name: str, content: bytes) -> Path:
    target = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"{target}: {error.strerror}") from error
    return replace_file(target, content)
