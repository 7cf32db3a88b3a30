"""What is kept of a comparison: the run of each mode, or why there is none.

::

    <folder>/modes.json          the modes in the order in which they were measured
    <folder>/<mode>/<run id>/    the run directory of each
    <folder>/comparison.md       the table
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.errors import KvkneeError, ResultsDirError, RunDirError
from harness.modes.asked import NAMES
from harness.modes.compare import HEADS, Outcome, mode_rows
from harness.report.build import build_report
from harness.report.markdown import text_table
from harness.report.rows import THIN_NOTE


class KeptMode(msgspec.Struct, frozen=True, kw_only=True):
    """One mode: where its run lies, or the reason."""

    mode: str
    #: from the folder; None without a run
    run: str | None = None
    reason: str | None = None
    #: of the command that measured it, so that its table shows nothing else as its own
    call: str | None = None


def keep(folder: Path, kept: KeptMode) -> None:
    """Write one mode down, in place of an earlier one of its name; raises ResultsDirError."""
    modes = [item for item in read_kept(folder) if item.mode != kept.mode]
    _write(folder / "modes.json", msgspec.json.format(msgspec.json.encode([*modes, kept])))


def read_kept(folder: Path) -> list[KeptMode]:
    """The modes of a folder; none where there are none; raises RunDirError."""
    path = folder / "modes.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[KeptMode])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise RunDirError(f"{path}: not readable as a list of modes ({error})") from error


def outcomes(folder: Path) -> list[Outcome]:
    """Every mode of a folder, its run analysed, in the order of the table."""
    found: list[Outcome] = []
    for kept in read_kept(folder):
        summary, reason = None, kept.reason
        if kept.run is not None:
            try:
                summary = build_report(folder / kept.run)
            except KvkneeError as error:
                reason = str(error)
        found.append(Outcome(kept.mode, summary, reason, kept.call))
    order = {name: place for place, name in enumerate(NAMES)}
    return sorted(found, key=lambda item: order.get(item.mode, len(order)))


def write_comparison(folder: Path, found: Sequence[Outcome]) -> Path:
    """``comparison.md``; raises ResultsDirError."""
    path = folder / "comparison.md"
    text = f"{text_table(HEADS, mode_rows(found))}\n\n{THIN_NOTE.replace('*', chr(92) + '*')}\n"
    _write(path, text.encode())
    return path


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise ResultsDirError(
            f"--results-dir: {path} cannot be written ({error.strerror}); "
            "name a folder that you may write to"
        ) from error
