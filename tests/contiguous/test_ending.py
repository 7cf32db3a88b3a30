"""The last resort of a stop: the process leaves though a thread of it does not end."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import threading
from servers.contiguous.ending import deadline
threading.Thread(target=threading.Event().wait).start()
timer = deadline(0.05)
timer.start()
"""


def test_a_thread_that_never_ends_is_left() -> None:
    """The interpreter itself would wait for the thread for ever."""
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "something still runs 0.05 s after the signal" in done.stderr
    assert "Traceback" not in done.stderr
