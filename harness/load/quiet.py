"""Keeps this process from making itself late while it measures.

Two things of a Python process on a busy machine delay its event loop by more than a token
takes: a full garbage collection over everything that was ever imported (50 to 150 ms), and
waiting for a turn behind servers that spin. Both are switched off for the run.
"""

from __future__ import annotations

import gc
import os

from harness.load.ctrl_c import ctrl_c_later

#: Above servers of ordinary priority; the client uses a few per cent of a core.
_NICE = -10


class QuietProcess:
    """From ``__init__`` to ``end``: no full collections, and priority where it is allowed."""

    def __init__(self) -> None:
        with ctrl_c_later():
            gc.collect()
        gc.freeze()
        self._before = os.getpriority(os.PRIO_PROCESS, 0)
        self._set(min(_NICE, self._before))
        #: what the run has, for its record; only root may have more than before
        self.nice = os.getpriority(os.PRIO_PROCESS, 0)

    def end(self) -> None:
        """As it was before; a second call does nothing more."""
        gc.unfreeze()
        self._set(self._before)

    def _set(self, nice: int) -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except PermissionError:
            return
