"""Everything that must be known before a run may start, gathered and checked."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile

from harness import __version__
from harness.errors import OptionError, ResultsDirError, UsageError
from harness.load import machine
from harness.load.clock import Clock
from harness.load.fit_mix import fitted
from harness.load.kv_theory import Config, known_config, stated_or_computed, token_bytes
from harness.load.launched import complete, is_local, launched_as
from harness.load.open_files import most_streams, require_open_files
from harness.load.preflight import PreparedBackend, prepare
from harness.load.settings import (
    DEFAULT_PROMETHEUS,
    PROMETHEUS_AUTO,
    PROMETHEUS_OFF,
    BackendAddress,
    LoadSettings,
)
from harness.load.urls import without_secrets
from harness.manifest import BackendInfo
from harness.observe import dcgm
from harness.observe.prometheus import PrometheusServer, find, probe
from harness.observe.prometheus_api import PrometheusFaultError
from harness.plan.fingerprint import fingerprint
from harness.plan.levels import LevelPolicy
from harness.stack.state import LaunchedBackend, fleet_backends, home_folder, running_backends

#: From the settings and the backends as they are to the level policy: what a scenario is.
PolicyMaker = Callable[[LoadSettings, Sequence[BackendInfo]], LevelPolicy]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunPlan:
    """A run that is ready to start."""

    settings: LoadSettings
    policy: LevelPolicy
    backends: Mapping[str, PreparedBackend]
    #: backend name -> process id, of servers launched on this machine
    pids: Mapping[str, int]
    prometheus: PrometheusServer | None
    #: sets this run's prompts apart from other runs' on the same servers
    nonce: int
    #: the plan was asked for, or nothing is left to do: there is no run
    only_shown: bool = False
    #: backend name -> its model's config, where that is known
    configs: Mapping[str, Config] = field(default_factory=dict)

    @property
    def infos(self) -> tuple[BackendInfo, ...]:
        """The backends as they described themselves."""
        return tuple(backend.info for backend in self.backends.values())

    @property
    def targets(self) -> dict[str, str]:
        """Metrics pages to scrape, by backend name; with GPUs, the exporter's too."""
        return metric_targets(self.settings, self.backends)


def make_plan(
    settings: LoadSettings, make_policy: PolicyMaker, clock: Clock, *, loads: bool = True
) -> RunPlan:
    """Check results folder, limits, servers and Prometheus; raises UsageError, one clear line.

    ``loads``: the requests are made by this process, and not by workers of its own.
    """
    check_results_dir(settings.results_dir)
    settings = fitted(settings)
    if loads:
        require_open_files(most_streams(settings.workload))
    nonce = secrets.randbits(32)
    computed = token_bytes(settings.model_config) if settings.model_config else None
    launched = _launched(settings.backends)
    backends: dict[str, PreparedBackend] = {}
    pids: dict[str, int] = {}
    configs: dict[str, Config] = {}
    for address in settings.backends:
        backend = prepare(address, settings, nonce, clock)
        launch = launched_as(backend.info, launched)
        if launch is not None:
            backend = replace(backend, info=complete(backend.info, launch))
            pids[address.name] = launch.pid
        config = known_config(launch, settings.model_config)
        if config is not None:
            configs[address.name] = config
        backends[address.name] = replace(backend, info=stated_or_computed(backend.info, computed))
    infos = [backend.info for backend in backends.values()]
    if settings.resume is not None:
        facts = fingerprint(settings.workload, infos, machine.hardware(), __version__)
        settings.resume.require_same(facts, settings.workload)
    return RunPlan(
        settings=settings,
        policy=make_policy(settings, infos),
        backends=backends,
        pids=pids,
        prometheus=_prometheus(settings, metric_targets(settings, backends)),
        nonce=nonce,
        configs=configs,
    )


def _launched(addresses: Sequence[BackendAddress]) -> tuple[LaunchedBackend, ...]:
    """The servers of this machine's stack; with a damaged state they are loaded as any other."""
    home = home_folder()
    try:
        return (*running_backends(home), *fleet_backends(home))
    except UsageError as error:
        if any(is_local(address.url) for address in addresses):
            logger.warning("%s; the run goes on without what only a launch states", error)
        return ()


def metric_targets(
    settings: LoadSettings, backends: Mapping[str, PreparedBackend]
) -> dict[str, str]:
    """Metrics pages by the name under which they are kept."""
    pages = {name: b.metrics_url for name, b in backends.items() if b.metrics_url is not None}
    return pages | ({dcgm.TARGET: settings.dcgm_url} if settings.gpus else {})


def check_results_dir(path: Path) -> None:
    """Raise ResultsDirError unless a run directory can be made in ``path``."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ResultsDirError(
            f"--results-dir: {path} cannot be written ({error.strerror}); "
            "name a folder that you may write to"
        ) from error


def _prometheus(settings: LoadSettings, targets: Mapping[str, str]) -> PrometheusServer | None:
    """The server to read from: the one that was named, or the local one when it fits."""
    wanted = settings.prometheus_url
    if wanted == PROMETHEUS_OFF:
        return None
    if wanted == PROMETHEUS_AUTO:
        return find(DEFAULT_PROMETHEUS, targets) if targets else None
    try:
        return probe(wanted, targets)
    except PrometheusFaultError as fault:
        raise OptionError(
            "--prometheus-url",
            without_secrets(wanted),
            f"a Prometheus server that scrapes the backends, or none ({fault})",
        ) from fault
