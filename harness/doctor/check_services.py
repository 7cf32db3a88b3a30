"""Rows about what runs already: the servers, and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.doctor.asked import Asked
from harness.doctor.facts import LocalStack, Prometheus, Server, Unknown
from harness.doctor.rows import COMMANDS, Row, fault, ok, warning
from harness.load.settings import PROMETHEUS_OFF


def check_services(
    asked: Asked,
    servers: Mapping[str, Server],
    stack: LocalStack,
    prometheus: Prometheus | Unknown | None,
) -> Iterator[Row]:
    """The servers that are up; before the first start that there are none is fine."""
    if stack.problem is not None:
        yield fault("local_state", stack.problem, "then run kvknee up again", ("local",))
    commands = " or ".join(COMMANDS[way] for way in asked.ways)
    if not servers:
        yield ok("servers", f"none is up yet; {commands} starts them")
    for use, server in servers.items():
        yield _server(use, server, stack)
    yield _prometheus(prometheus, asked, bool(servers))


def _server(use: str, server: Server, stack: LocalStack) -> Row:
    name = f"server_{use}"
    if server.healthy:
        what = f" with {server.model}" if server.model else ""
        return ok(name, f"answers at {server.url}{what}")
    log = stack.logs.get(use)
    remedy = f"see {log}" if log else f"see docker compose logs {use}"
    return warning(
        name,
        f"is up at {server.url} but does not answer yet",
        f"wait while it loads its model; {remedy}",
    )


def _prometheus(prometheus: Prometheus | Unknown | None, asked: Asked, servers_up: bool) -> Row:
    name = "prometheus"
    if prometheus is None:
        if "compose" in asked.ways and asked.prometheus_url != PROMETHEUS_OFF:
            return ok(name, f"not up yet; {COMMANDS['compose']} starts it")
        return ok(name, "none is used; a run scrapes the servers itself")
    if isinstance(prometheus, Unknown):
        return warning(name, f"cannot be told: {prometheus.reason}", "open its page")
    if prometheus.problem is not None:
        return warning(
            name,
            prometheus.problem,
            f"a run scrapes the servers itself then; {prometheus.url}/targets shows what it sees",
        )
    version = f"Prometheus {prometheus.version}" if prometheus.version else "Prometheus"
    if not servers_up:
        return ok(name, f"{version} answers at {prometheus.url}; no server is up yet")
    return ok(name, f"{version} at {prometheus.url} sees the servers")
