"""Goes on with a run that was interrupted: which cells are finished, and whether it may be.

A cell is finished when its ``level_end`` says that it came to its own end; every record of
it is on disk by then. One that had begun is done again whole, and what was recorded of it
before does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import RunDirError, UsageError, shortened
from harness.load.clock import Clock, ShiftedClock
from harness.load.matrix_options import RUN, SKIP
from harness.manifest import Manifest
from harness.records import CellKey, LevelSummary, RunEvent, Scalar
from harness.rundir import LAST_REPORT, RunDir
from harness.workload import Workload

#: How a level ends by itself.
_OWN_ENDS = frozenset({"complete", "time_limit"})
#: Clocks of one boot of a machine drift apart by less.
_SAME_BOOT_S = 60.0
#: fields of the workload whose option is called otherwise
_OPTIONS = {
    "shapes": "--prompt-tokens and --output-tokens",
    "min_level_s": "--min-level-seconds",
    "max_level_s": "--max-level-seconds",
    "ramp_up_s": "--ramp-up-seconds",
    "request_timeout_s": "--request-timeout",
    "idle_timeout_s": "--idle-timeout",
}
#: follow from the shapes
_DERIVED = frozenset({"prompt_tokens", "output_tokens"})


@dataclass(frozen=True)
class Resumption:
    """An interrupted run as it lies on the disk."""

    path: Path
    manifest: Manifest
    finished: tuple[LevelSummary, ...]
    #: cells that had begun and did not come to their end
    begun: tuple[CellKey, ...]
    #: how this process is called in the records: each one numbers its requests anew
    worker: str
    #: the latest time of its events
    last_s: float
    #: it came to its end and its report was made
    reported: bool = False

    def shift_s(self, clock: Clock) -> float:
        """What must be added to the monotonic clock for times to go on rising.

        0 within one boot of the machine. After a restart that clock began anew: then the
        wall clock tells how much later it is.
        """
        now_s = clock.monotonic()
        expected_s = self.manifest.t0_s + clock.wall() - self.manifest.t0_wall_s
        same_boot = abs(expected_s - now_s) < _SAME_BOOT_S
        shift_s = 0.0 if same_boot else expected_s - now_s
        return max(shift_s, self.last_s - now_s)

    def clock(self, clock: Clock) -> Clock:
        """The run's clock from here on."""
        shift_s = self.shift_s(clock)
        return ShiftedClock(clock, shift_s) if shift_s else clock

    def require_same(self, fingerprint: Mapping[str, Scalar], workload: Workload) -> None:
        """Raise UsageError, one line, when what would be measured now is something else."""
        before = self.manifest.fingerprint
        different = [
            _difference(name, before.get(name), fingerprint.get(name))
            for name in {**before, **fingerprint}
            if before.get(name) != fingerprint.get(name) and name != "workload.hash"
        ]
        different = _asked_otherwise(self.manifest.workload, workload) + different
        if different:
            raise UsageError(
                f"--resume: {self.path} is of another making: {'; '.join(different)}; "
                "resume it as it was, or start a new run"
            )


def read_resumption(path: Path, scenario: str) -> Resumption:
    """What lies in a run directory; raises RunDirError or UsageError, one clear line."""
    run = RunDir.open(path)
    manifest = run.manifest()
    if manifest.workload.scenario != scenario:
        raise UsageError(
            f"--resume: {path} is a run of scenario {manifest.workload.scenario}; "
            f"expected one of {scenario}"
        )
    finished: dict[CellKey, LevelSummary] = {}
    begun: dict[CellKey, float] = {}
    resumed, last_s = 0, manifest.t0_s
    for event in run.events():
        last_s = max(last_s, event.t_s)
        resumed += event.kind == "resumed"
        if event.cell is not None:
            _note(event, event.cell, begun, finished)
    if "events.jsonl" in run.absent:
        raise RunDirError(
            f"--resume: events.jsonl of {path} {run.absent['events.jsonl']}, so what is finished "
            "is not known; start a new run"
        )
    records = path / "records.jsonl"
    if finished and not (records.is_file() and records.stat().st_size):
        raise RunDirError(
            f"--resume: records.jsonl of {path} is missing or empty, so what finished cells "
            "measured is lost; start a new run"
        )
    return Resumption(
        path=path,
        manifest=manifest,
        finished=tuple(finished.values()),
        begun=tuple(begun),
        worker=f"local-{resumed + 2}",
        last_s=last_s,
        reported=manifest.status == "complete" and (path / LAST_REPORT).is_file(),
    )


def _note(
    event: RunEvent,
    cell: CellKey,
    begun: dict[CellKey, float],
    finished: dict[CellKey, LevelSummary],
) -> None:
    if event.kind == "level_start":
        begun[cell] = event.t_s
    elif event.kind == "level_end" and cell in begun and event.detail.get("reason") in _OWN_ENDS:
        took_s = event.t_s - begun.pop(cell)
        finished[cell] = LevelSummary(
            cell=cell,
            n_ok=0,
            n_failed=0,
            window_s=None,
            reason=str(event.detail["reason"]),
            took_s=took_s,
        )


def resumed_options(
    given: Mapping[str, object], defaults: Mapping[str, str], manifest: Manifest
) -> dict[str, object]:
    """The options with those of the run in place of every one left at its default."""
    of_run = _texts(manifest)
    return {
        name: of_run[name] if name in of_run and value == defaults.get(name) else value
        for name, value in given.items()
    }


def _texts(manifest: Manifest) -> dict[str, str]:
    """A manifest's workload as the options that ask for it."""
    work, slo = manifest.workload, manifest.slo
    shapes = work.shapes or ()
    limits = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    models = {info.model for info in manifest.backends}
    found = {
        "backends": ",".join(f"{info.name}={info.url}" for info in manifest.backends),
        "prompt_tokens": _list(sorted({prompt for prompt, _ in shapes})),
        "output_tokens": _list(sorted({output for _, output in shapes})),
        "levels": _list(work.levels),
        "min_requests": _list(work.min_requests),
        "min_level_seconds": _plain(work.min_level_s),
        "max_level_seconds": _plain(work.max_level_s),
        "ramp_up_seconds": _plain(work.ramp_up_s),
        "request_timeout": _plain(work.request_timeout_s),
        "idle_timeout": _plain(work.idle_timeout_s),
        "repeats": f"{work.repeats}",
        "seed": f"{work.seed}",
        "max_failure_rate": _plain(manifest.max_failure_rate),
        "slo": " ".join(
            f"{name}:{_plain(round(limit * 1000, 9))}" for name, limit in limits.items() if limit
        ),
    }
    asked = manifest.matrix
    if asked is not None:
        found["beyond_kv_budget"] = SKIP if asked.skip_beyond_budget else RUN
        budget_s = asked.budget_s
        found["budget_minutes"] = "" if budget_s is None else _plain(budget_s / 60)
    return found | ({"model": models.pop()} if len(models) == 1 else {})


def _list(values: object) -> str:
    assert isinstance(values, list | tuple)  # noqa: S101 - callers pass nothing else
    return ",".join(_plain(value) for value in values)


def _plain(value: float) -> str:
    """A number without exponent: options take digits and a point."""
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _asked_otherwise(before: Workload, now: Workload) -> list[str]:
    """Which fields of the workload differ, in words."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    return [
        _difference(_OPTIONS.get(name, f"--{name.replace('_', '-')}"), old[name], new[name])
        for name in old
        if old[name] != new[name] and name not in _DERIVED
    ]


def _difference(name: str, before: object, now: object) -> str:
    return f"{name} is {shortened(_text(now))}, there it is {shortened(_text(before))}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        pairs = any(isinstance(item, tuple) for item in value)
        return (" " if pairs else ",").join(
            "+".join(_text(each) for each in item) if isinstance(item, tuple) else _text(item)
            for item in value
        )
    if isinstance(value, float):
        return f"{value:g}"
    return "not known" if value is None else str(value)
