"""Rows about the ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.doctor.asked import Asked
from harness.doctor.facts import Container, Holder, PortUse, Unknown
from harness.doctor.needed_ports import HARNESS, NeededPort
from harness.doctor.rows import COMMANDS, Row, Status, fault, ok, warning

#: what stops the stack of each way
_STOPS = {"compose": "docker compose down", "local": "kvknee down"}


def check_ports(
    asked: Asked,
    ports: tuple[NeededPort, ...],
    uses: Mapping[int, PortUse | Unknown],
    owned: Mapping[str, Mapping[int, str]],
    containers: tuple[Container, ...],
    foreign_models: Mapping[int, str],
) -> Iterator[Row]:
    """One row for each port that is needed."""
    for port in ports:
        name = f"port_{port.use}"
        if port.number is None:
            yield fault(
                name, f"{port.place} is no port number", "write a number, 1 to 65535", port.ways
            )
            continue
        use = uses[port.number]
        ours = [way for way in owned if port.number in owned[way]]
        if isinstance(use, Unknown):
            yield warning(name, f"{port.number}: {use.reason}", "look at it yourself", port.ways)
        elif ours:
            yield _ours(name, port, ours[0], asked)
        elif use.state == "free":
            yield ok(name, f"{port.number} is free", port.ways)
        elif use.state == "denied":
            text = f"{port.number} needs more rights than you have"
            yield fault(name, text, f"name a port above 1023: {port.place}", port.ways)
        else:
            who = _holder(port.number, use.holder, containers)
            yield _taken(port, who, asked, foreign_models.get(port.number))


def _ours(name: str, port: NeededPort, owner: str, asked: Asked) -> Row:
    """A port of a running stack: fine for its own way, in the way of the other."""
    others = tuple(way for way in port.ways if way != owner)
    text = f"{port.number} is held by your own stack"
    if not others:
        return ok(name, text, port.ways)
    severe = asked.ways == others
    return Row(
        name,
        Status.FAULT if severe else Status.WARNING,
        f"{text}; {COMMANDS[others[0]]} needs it too",
        f"{_STOPS[owner]} first, or another port: {port.place}",
        others,
    )


def _holder(number: int, holder: Holder, containers: tuple[Container, ...]) -> str:
    """Who has it, as far as it can be told."""
    for container in containers:
        if number in container.ports:
            return f"the container {container.name}"
    if holder.pid is None:
        return "another user's process, or a container"
    return f"pid {holder.pid} ({holder.program})"


def _taken(port: NeededPort, who: str, asked: Asked, model: str | None) -> Row:
    name, text = f"port_{port.use}", f"{port.number} is taken by {who}"
    if port.use == HARNESS:
        return _taken_harness(name, text, port, asked)
    remedy = f"end that, or name another port: {port.place}"
    if model is not None:
        text = f"{text}, which serves {model}"
        remedy = (
            f"{remedy}; to load-test that server itself you need no stack: "
            f"locust -f scenarios/concurrency.py --backends mine=http://127.0.0.1:{port.number}"
        )
    return fault(name, text, remedy, port.ways)


def _taken_harness(name: str, text: str, port: NeededPort, asked: Asked) -> Row:
    """A run goes on without its live page, unless the user named that very port."""
    remedy = f"end that (a run that goes on?), or name another: {port.place}"
    if asked.metrics.named:
        return fault(name, text, remedy, port.ways)
    return warning(name, f"{text}; a run would have no live metrics", remedy, port.ways)
