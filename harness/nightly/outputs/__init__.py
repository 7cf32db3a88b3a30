"""What a night leaves for people and machines."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.nightly.night_types import Night


def write(night: Night, folder: Path) -> tuple[Path, ...]:
    """Write the night's files; gives their paths."""
    path = folder / "night.json"
    path.write_bytes(msgspec.json.encode(night))
    return (path,)
