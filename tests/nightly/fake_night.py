"""A whole night without servers or load: run directories as a load would leave them.

``python -m tests.nightly.fake_night RESULTS`` runs one, for tests that kill it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.errors import KvkneeError
from harness.nightly.job.harvest import Harvest, harvest, of_summary
from harness.nightly.job.load import Loaded, Loader
from harness.nightly.job.night import NightAsk, Outside, run_night
from harness.nightly.job.plan import Group, Repeat
from harness.nightly.job.preflight import Machine
from harness.nightly.night_types import Night
from harness.nightly.suite import Suite, read_suite
from tests.support.fake_server import PAGED, STATIC, FakeServer
from tests.support.run_builder import Run, build_run, replace_manifest
from tests.support.run_files import write_run

SUITE = """
suite = "fake"

[[run]]
name = "short"
scenario = "concurrency"
backends = ["paged"]
model = "tiny"
levels = [4]
prompt_tokens = 512
output_tokens = 128
repeats = 3
kv_budget = "16MiB"

[gate]
min_nights = 3
primary = [
    { run = "short", backend = "paged", level = 4, metric = "ttft_p50_s" },
    { run = "short", backend = "paged", level = 4, metric = "output_tokens_per_s" },
]
"""
#: a second run that differs in its budget alone
TIGHT = SUITE.split("[gate]")[0].split("[[run]]")[1].replace("short", "tight").replace("16M", "8M")
TWO_RUNS = SUITE.replace("[gate]", f"[[run]]{TIGHT}\n[gate]")
IDLE = Machine(0.01, 0.1, 2, 16 * 2**30, 12 * 2**30, 50 * 2**30, "performance", "tsc", ("vllm 1",))


class Quiet:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def update(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def log_tail(self, title: str, lines: Sequence[str]) -> None: ...


@dataclass
class FakeServers:
    """Servers that the loader can kill by name."""

    restartable: bool = True
    gone: set[str] = field(default_factory=set)
    did: list[str] = field(default_factory=list)
    refuse_start: KvkneeError | None = None

    def start(self, group: Group) -> Mapping[str, str]:
        if self.refuse_start is not None:
            raise self.refuse_start
        self.did.append(f"start {group.model} {group.kv_budget} {'+'.join(group.backends)}")
        return self._urls(group)

    def dead(self) -> tuple[str, ...]:
        return tuple(sorted(self.gone))

    def restart(self) -> Mapping[str, str]:
        self.did.append("restart")
        self.gone.clear()
        return {"paged": "http://x:1", "contiguous": "http://x:2"}

    def stop(self) -> None:
        self.did.append("stop")

    def clear(self) -> tuple[str, ...]:
        return ()

    def _urls(self, group: Group) -> Mapping[str, str]:
        return {name: f"http://x:{i}" for i, name in enumerate(group.backends)}


@dataclass
class FakeLoad:
    """Leaves the run of a server of that speed; ``act`` is asked first and may answer itself."""

    runs: Path
    slower: float = 1.0
    engine: str = "0.32.0"
    act: Callable[[Repeat, bool], Loaded | None] = lambda *_: None
    did: list[str] = field(default_factory=list)
    left: dict[Path, Harvest] = field(default_factory=dict)

    def __call__(self, repeat: Repeat, urls: Mapping[str, str], again: bool) -> Loaded:
        self.did.append(f"{repeat.run.name}-{repeat.number + 1}" + (" again" if again else ""))
        answered = self.act(repeat, again)
        return answered if answered is not None else self.leave(repeat)

    def leave(self, repeat: Repeat, exit_code: int = 0, said: str = "done") -> Loaded:
        levels = repeat.run.levels
        servers = tuple(self._server(name, repeat.number) for name in repeat.backends)
        run = _built(servers, levels)
        facts = {f"{name}.engine_version": self.engine for name in repeat.backends}
        run = replace(run, manifest=replace_manifest(run.manifest, fingerprint=facts))
        folder = write_run(run, self.runs)
        summary = replace(_summary(servers, levels), manifest=run.manifest)
        self.left[folder] = of_summary(summary, repeat)
        return Loaded(exit_code, 20.0, folder, said)

    def read(self, folder: Path, repeat: Repeat) -> Harvest:
        """As ``harvest`` does, without analysing equal runs again."""
        return self.left[folder]

    def _server(self, name: str, repeat: int) -> FakeServer:
        server = PAGED if name == "paged" else STATIC
        # each repeat a little apart, as in life
        speed = self.slower * (1.0 + 0.002 * repeat)
        return replace(
            server,
            prefill_s=server.prefill_s * speed,
            tpot_s=server.tpot_s * speed,
            tpot_per_running_s=server.tpot_per_running_s * speed,
        )


@lru_cache(maxsize=32)
def _built(servers: tuple[FakeServer, ...], levels: tuple[int, ...]) -> Run:
    return build_run(servers, levels, [max(20, 3 * level) for level in levels])


@lru_cache(maxsize=32)
def _summary(servers: tuple[FakeServer, ...], levels: tuple[int, ...]) -> RunSummary:
    run = _built(servers, levels)
    return analyse(run.manifest, run.records, run.events, run.series)


def suite_of(folder: Path, text: str = SUITE) -> Suite:
    path = folder / "suite.toml"
    path.write_text(text)
    return read_suite(path)


@dataclass
class Fakes:
    """What one night was given, to be looked at after it."""

    folder: Path
    servers: FakeServers = field(default_factory=FakeServers)
    progress: Quiet = field(default_factory=Quiet)
    load: FakeLoad | None = None
    wall_s: float = 1_790_000_000.0
    #: in place of the load's own
    read: Callable[[Path, Repeat], Harvest] | None = None

    def night(
        self,
        suite: Suite | None = None,
        make: Callable[[Path], Loader] | None = None,
        **load: object,
    ) -> Night:
        """Run a night a day after the one before."""
        self.wall_s += 86_400.0

        def loader(runs: Path, logs: Path, mark: str, home: Path) -> Loader:
            if make is not None:
                return make(runs)
            self.load = FakeLoad(runs, **load)  # type: ignore[arg-type]
            return self.load

        outside = Outside(
            wall_s=lambda: self.wall_s,
            look=lambda _: IDLE,
            servers=lambda *_: self.servers,
            loader=loader,
            read=self.read or (lambda folder, repeat: self._read(folder, repeat)),
        )
        return run_night(self.ask(suite), self.progress, outside)

    def _read(self, folder: Path, repeat: Repeat) -> Harvest:
        assert self.load is not None
        return self.load.read(folder, repeat)

    def ask(self, suite: Suite | None = None) -> NightAsk:
        return NightAsk(
            suite or suite_of(self.folder),
            self.folder / "results",
            self.folder / "results" / "history.sqlite",
            self.folder / "home",
        )


def main(folder: Path) -> None:
    fakes = Fakes(folder, wall_s=time.time(), read=harvest)
    print("begun", flush=True)
    fakes.night()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
