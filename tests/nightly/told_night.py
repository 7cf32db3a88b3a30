"""``kvknee nightly`` whose night is made up: for tests of what it prints, and where it cannot.

``python -m tests.nightly.told_night FOLDER EXIT_CODE``
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from harness.cli import main
from harness.nightly.job import night as job
from harness.nightly.job.night import NightAsk, Outside
from harness.nightly.night_types import Night
from harness.stack.progress import Progress
from tests.nightly.fake_night import SUITE
from tests.nightly.outputs.nights import whole_night


def told(folder: Path, exit_code: int) -> None:
    def run_night(ask: NightAsk, progress: Progress, outside: Outside) -> Night:
        night = replace(whole_night(), exit_code=exit_code)
        for number in range(3):
            progress.note(f"short, repeat {number + 1} of 3")
        outside.show(night)
        return night

    job.run_night = run_night  # type: ignore[assignment]
    suite = folder / "suite.toml"
    suite.write_text(SUITE)
    sys.argv = ["kvknee", "nightly", str(suite), "--results-dir", str(folder / "results")]
    main()


if __name__ == "__main__":
    told(Path(sys.argv[1]), int(sys.argv[2]))
