"""Stands in for a load: ``python -m tests.nightly.stand_in_load FOLDER``.

It says that it has begun, waits for SIGTERM, and says then that it has ended tidily.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path


def main(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        (folder / "begun").write_text("")
        signal.pause()
    except KeyboardInterrupt:
        (folder / "tidy").write_text("")
        print("ended tidily")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
