"""Several local servers side by side that differ in one thing each: a fleet of small stacks.

A stack (``harness.stack.local``) has one paged and one contiguous server. A comparison of
ways to reserve memory needs several contiguous ones: every member is a stack of its own, in
``<home>/fleet/<name>``, with one server on a free port and the models of ``<home>``.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from harness.errors import OptionError, UsageError
from harness.stack import local
from harness.stack.local import Runtime
from harness.stack.options import UpOptions
from harness.stack.ports import HOST
from harness.stack.progress import Progress
from harness.stack.state import FLEET


@dataclass(frozen=True)
class FleetMember:
    """One server: its name in reports, and what it has apart from the others."""

    name: str
    #: options of ``kvknee up``
    changes: Mapping[str, object] = field(default_factory=dict)


#: The ways to reserve KV memory, from the most wasteful to the least.
RESERVATIONS = (
    FleetMember("max", {"backends": "contiguous", "cache": "static", "reserve": "max"}),
    FleetMember("pow2", {"backends": "contiguous", "cache": "static", "reserve": "pow2"}),
    FleetMember("exact", {"backends": "contiguous", "cache": "static", "reserve": "exact"}),
    FleetMember("paged", {"backends": "paged"}),
)
#: From one request at a time to a paged cache, a step each.
STEPS = (
    FleetMember("one-at-a-time", {"backends": "contiguous", "cache": "static", "batching": "none"}),
    FleetMember("batched", {"backends": "contiguous", "cache": "static"}),
    FleetMember("exact", {"backends": "contiguous", "cache": "static", "reserve": "exact"}),
    FleetMember("paged", {"backends": "paged"}),
)


def chosen(members: Sequence[FleetMember], text: str, option: str) -> tuple[FleetMember, ...]:
    """Those of the names joined by commas, in their own order; raises OptionError."""
    names = [part.strip() for part in text.split(",")]
    known = [member.name for member in members]
    if not set(names) <= set(known) or len(set(names)) != len(names):
        raise OptionError(option, text, f"names of {', '.join(known)}, each once")
    return tuple(member for member in members if member.name in names)


@contextlib.contextmanager
def fleet(
    options: UpOptions,
    members: Sequence[FleetMember],
    progress: Progress,
    runtime: Runtime | None = None,
) -> Iterator[dict[str, str]]:
    """Start one server per member and give their URLs by name; stops them all at the end.

    What ``options`` say holds for all of them. Raises UsageError and StackError as
    ``harness.stack.local.up``; whatever was started by then is stopped.
    """
    ports = free_ports(2 * len(members))
    asked = [
        _member_options(options, member, paged_port=paged, contiguous_port=contiguous)
        for member, paged, contiguous in zip(members, ports[::2], ports[1::2], strict=True)
    ]
    started: list[Path] = []
    try:
        urls: dict[str, str] = {}
        for member, own in zip(members, asked, strict=True):
            share_models(options.home, own.home)
            progress.update(f"starting {member.name}")
            result = local.up(own, progress, runtime)
            # one that did not start has cleaned up after itself, and another run's is not ours
            started.append(own.home)
            urls[member.name] = result.state.backends[0].url
            progress.note(f"{member.name}: {urls[member.name]}")
        yield urls
    finally:
        progress.update("stopping the servers")
        # every one is stopped, whatever becomes of another
        with contextlib.ExitStack() as ending:
            for home in started:
                ending.callback(local.down, home, runtime)


def _member_options(
    options: UpOptions, member: FleetMember, *, paged_port: int, contiguous_port: int
) -> UpOptions:
    known = {item.name for item in fields(UpOptions)}
    missing = set(member.changes) - known
    if missing:
        raise UsageError(f"{member.name}: this kvknee cannot start servers with {sorted(missing)}")
    return replace(
        options,
        home=options.home / FLEET / member.name,
        paged_port=paged_port,
        contiguous_port=contiguous_port,
        **member.changes,  # type: ignore[arg-type]
    )


def share_models(home: Path, member_home: Path) -> None:
    """A model is made once for all."""
    models = home.resolve() / "models"
    link = member_home / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        member_home.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(models)
    except OSError as error:
        raise UsageError(
            f"--home: {home} cannot be written ({error.strerror}); name a folder that you may "
            "write to"
        ) from error


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, each another one."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
