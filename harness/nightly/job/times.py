"""How long the repeats of a suite took, so that the next night can say what is left.

``<results>/nightly/<suite>.times.json`` is advice and no more: without it there is a guess.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from harness.nightly.job.plan import Repeat, groups, guessed_s
from harness.nightly.night_types import NightRun
from harness.nightly.suite import Suite
from harness.plan.estimate import about


class Clockwork:
    """What is left of a night, from what its repeats have taken so far."""

    def __init__(
        self, suite: Suite, known: Mapping[str, float], clock: Callable[[], float]
    ) -> None:
        """``known`` are seconds by run, of the night before."""
        self._left = [item for group in groups(suite) for item in group.repeats]
        self._known = known
        self._clock = clock
        self._took: dict[str, list[float]] = {}
        self._now: tuple[Repeat, float] | None = None

    def left(self, begun: Repeat) -> str:
        """``about 4 min left``, when a repeat is just begun."""
        now_s = self._clock()
        if self._now is not None:
            repeat, since_s = self._now
            self._took.setdefault(repeat.run.name, []).append(now_s - since_s)
        self._now = begun, now_s
        if begun in self._left:
            self._left = self._left[self._left.index(begun) :]
        return f"about {about(sum(self._takes_s(item) for item in self._left))} left"

    def _takes_s(self, repeat: Repeat) -> float:
        took = self._took.get(repeat.run.name)
        return median(took) if took else guessed_s(repeat, self._known)


def known_times(nights: Path, suite: str) -> dict[str, float]:
    """Seconds of a repeat, by run; empty when no night has left them."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(_path(nights, suite).read_bytes(), type=dict[str, float])
    return {}


def keep_times(nights: Path, suite: str, runs: Sequence[NightRun]) -> None:
    """Keep tonight's; a disk that takes no more loses nothing that counts."""
    took: dict[str, list[float]] = {}
    for run in runs:
        if run.exit_code == 0:
            took.setdefault(run.name, []).append(run.seconds)
    if took:
        text = msgspec.json.encode({name: round(median(all_s), 1) for name, all_s in took.items()})
        with contextlib.suppress(OSError):
            _path(nights, suite).write_bytes(text)


def _path(nights: Path, suite: str) -> Path:
    return nights / f"{suite}.times.json"
