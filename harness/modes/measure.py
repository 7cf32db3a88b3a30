"""Restarts the contiguous server through the modes and puts the same load on each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from harness.errors import KvkneeError, StackError, UsageError
from harness.modes.asked import Load, Mode
from harness.modes.folder import KeptMode, keep
from harness.stack.local import Runtime, down, up
from harness.stack.options import UpOptions
from harness.stack.progress import Progress
from harness.stack.state import read_state

#: From a server's address to its run's exit code; the runs go into the folder.
Loader = Callable[[str, Path], int]

_SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "concurrency.py"


def measure_modes(
    modes: Sequence[Mode],
    basis: UpOptions,
    sliding_window: int | None,
    folder: Path,
    load: Loader,
    progress: Progress,
    runtime: Runtime | None = None,
    call: str | None = None,
) -> None:
    """Every mode in turn; what each gave is kept at once, so that Ctrl-C loses one at most.

    A mode that is refused at its start is kept with the reason. ``call`` tells what one command
    measured from what lay in the folder before. Raises UsageError when the
    stack of this home is up already: it is somebody's, and not restarted.
    """
    if read_state(basis.home) is not None:
        raise UsageError(
            f"the stack of {basis.home} is up; run `kvknee down` first, or name another --home"
        )
    for mode in modes:
        progress.note(f"mode {mode.name}")
        kept = _measured(mode, basis, sliding_window, folder, load, progress, runtime)
        keep(folder, replace(kept, call=call))


def _measured(
    mode: Mode,
    basis: UpOptions,
    sliding_window: int | None,
    folder: Path,
    load: Loader,
    progress: Progress,
    runtime: Runtime | None,
) -> KeptMode:
    try:
        state = up(mode.options(basis, sliding_window), progress, runtime).state
    except StackError as error:
        return KeptMode(mode=mode.name, reason=f"refused at start: {_cause(error)}")
    try:
        return loaded(mode.name, state.backends[0].url, folder, load)
    finally:
        progress.update("stopping the server")
        down(basis.home, runtime)


def loaded(name: str, url: str, folder: Path, load: Loader) -> KeptMode:
    """The load on a running server, as it is kept."""
    place = folder / name
    before = set(place.glob("*/manifest.json"))
    code = load(url, place)
    # a folder used again holds the runs of earlier calls
    new = set(place.glob("*/manifest.json")) - before
    runs = sorted(new, key=lambda path: path.stat().st_mtime_ns)
    if not runs:
        return KeptMode(mode=name, reason=f"the load ended with exit code {code}, without a run")
    reason = None if code == 0 else f"the load ended with exit code {code}"
    return KeptMode(mode=name, run=str(runs[-1].parent.relative_to(folder)), reason=reason)


def _cause(error: KvkneeError) -> str:
    """The server's own words where it said any; the message without its log's place."""
    text = str(error)
    inner = text.partition("(")[2].rpartition(")")[0]
    return inner or text.partition("; log:")[0]


def locust_loader(load: Load, home: Path, api_key: str | None = None) -> Loader:
    """Runs ``scenarios/concurrency.py`` in a process of its own."""

    def run(url: str, place: Path) -> int:
        command = [
            *(sys.executable, "-m", "locust", "-f", str(_SCENARIO), "--headless"),
            *("--only-summary", *load.arguments(url, place)),
        ]
        environment = {**os.environ, "KVKNEE_HOME": str(home)}
        if api_key:
            environment["OPENAI_API_KEY"] = api_key
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603

    return run
