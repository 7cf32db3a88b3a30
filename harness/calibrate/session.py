"""One calibration from its levels to the file in the home folder."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console

from harness.calibrate.levels import measure_levels
from harness.calibrate.processes import require_core
from harness.calibrate.result import Calibration, LevelResult, ceiling
from harness.calibrate.settings import CalibrateSettings
from harness.calibrate.stored import difference, read_calibration, write_calibration
from harness.load.machine import identity
from harness.load.open_files import require_open_files
from harness.stack.progress import shown


def calibrate(settings: CalibrateSettings, home: Path, console: Console) -> Calibration | None:
    """Measure all levels and keep the result; None when interrupted before the first.

    After Ctrl-C the levels done so far are the result. They are not kept in place of a
    whole calibration of the same machine and versions. Raises UsageError, CalibrationError.
    """
    require_core(settings.core)
    require_open_files(max(settings.streams))
    levels: list[LevelResult] = []
    complete = False
    with contextlib.suppress(KeyboardInterrupt), shown(console) as progress:
        for level in measure_levels(settings, progress.update):
            levels.append(level)
        complete = True
    if not levels:
        return None
    found = Calibration(
        made_wall_s=time.time(),
        identity=identity(),
        rate_per_stream=settings.rate,
        seconds=settings.seconds,
        complete=complete,
        levels=tuple(levels),
        tokens_per_s=ceiling(levels),
    )
    if complete or not _whole_one_holds(home, found):
        write_calibration(home, found)
    return found


def _whole_one_holds(home: Path, found: Calibration) -> bool:
    kept = read_calibration(home)
    return kept is not None and kept.complete and difference(kept, found.identity) is None
