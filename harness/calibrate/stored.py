"""``<home>/calibration.json``: the last calibration, and whether it holds here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from harness.calibrate.result import CALIBRATION_SCHEMA_VERSION, Calibration
from harness.errors import UsageError
from harness.records import Scalar

_NAME = "calibration.json"


def calibration_path(home: Path) -> Path:
    """Where the calibration of that home lies."""
    return home / _NAME


def write_calibration(home: Path, calibration: Calibration) -> Path:
    """Replace the file whole or not at all; raises UsageError when it cannot be written."""
    path = calibration_path(home)
    draft = path.with_name(path.name + ".tmp")
    try:
        home.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(calibration)) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise UsageError(
            f"--home: {home} cannot be written ({error.strerror}); "
            "name a folder that you may write to"
        ) from error
    return path


def read_calibration(home: Path) -> Calibration | None:
    """The calibration on file; None for none, or one that cannot be read.

    It adds a remark to a report and no more, so a damaged file stops nothing.
    """
    try:
        found = msgspec.json.decode(calibration_path(home).read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.schema_version == CALIBRATION_SCHEMA_VERSION else None


def difference(calibration: Calibration, identity: Mapping[str, Scalar]) -> str | None:
    """What has changed since, as ``gevent 25.9 (now 26.1)``; None when nothing has."""
    old = calibration.identity
    changed = [name for name in {**old, **identity} if old.get(name) != identity.get(name)]
    if not changed:
        return None
    return ", ".join(f"{name} {old.get(name)} (now {identity.get(name)})" for name in changed)
