"""A lock on a full disk is an error of the job, in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from harness.errors import NightlyError
from harness.nightly.job.lock import Holder, held


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(NightlyError, match="No space left on device"),
        held(tmp_path / "lock", Holder(1, "suite", 0.0, "mark")),
    ):
        pass
