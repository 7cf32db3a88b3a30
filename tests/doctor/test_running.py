"""Ports, and the servers and the Prometheus that run already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.doctor.facts import (
    Holder,
    LocalStack,
    Memory,
    PortUse,
)
from harness.errors import OptionError
from harness.observe.prometheus_api import PrometheusFaultError
from tests.doctor.well_machine import (
    GIB,
    clone,
    commands,
    faults,
    look,
    row_of,
    rows_of,
    said,
    warnings,
    well,
)


def test_a_local_stack_that_is_up(tmp_path: Path) -> None:
    """Fine for `kvknee up`; `docker compose up` would find the ports taken."""
    probes = well(
        local_stack=lambda home: LocalStack(
            {8000: "paged", 8001: "contiguous"}, {"paged": "p.log"}
        ),
        port=lambda number: PortUse("taken" if number in (8000, 8001) else "free"),
        memory=lambda: Memory(8 * GIB, GIB),
        healthy=lambda url: url.endswith(":8001"),
    )
    local = look(clone(tmp_path), probes, local=True)
    assert faults(local) == []
    assert row_of(local, "port_paged").found == "8000 is held by your own stack"
    assert row_of(local, "memory").found.endswith("your servers running")
    assert row_of(local, "server_contiguous").found == (
        "answers at http://127.0.0.1:8001 with tiny"
    )
    assert "see p.log" in row_of(local, "server_paged").remedy
    assert warnings(local) == ["server_paged"]

    both = look(tmp_path, probes)
    assert faults(both) == []
    assert row_of(both, "port_paged").remedy.startswith("kvknee down first, or another port: PAGED")
    files = (tmp_path / "docker-compose.yml", tmp_path / "docker-compose.cpu.yml")
    compose = look(tmp_path, probes, compose=files)
    assert faults(compose) == ["port_paged", "port_contiguous"]


def test_a_compose_stack_that_is_up(tmp_path: Path) -> None:
    ports = "127.0.0.1:8000->8000/tcp\n"
    ps = (
        f"kvknee-paged-1\t{tmp_path}\t{ports}kvknee-grafana-1\t{tmp_path}\t127.0.0.1:3000->3000/tcp"
    )
    seen: dict[str, Any] = {}

    def prometheus(url: str, targets: Any) -> str:
        seen[url] = dict(targets)
        return "3.13.2"

    probes = well(
        run=commands(ps=said(ps)),
        port=lambda number: PortUse("taken" if number in (8000, 3000, 9090) else "free"),
        prometheus=prometheus,
        environment={"KVKNEE_PROMETHEUS_URL": "http://user:word@127.0.0.1:9090"},
    )
    report = look(clone(tmp_path), probes, compose=(tmp_path / "docker-compose.cpu.yml",))
    assert faults(report) == []
    assert row_of(report, "port_grafana").found == "3000 is held by your own stack"
    assert seen == {"http://user:word@127.0.0.1:9090": {"paged": "http://127.0.0.1:8000/metrics"}}
    assert row_of(report, "prometheus").found == (
        "Prometheus 3.13.2 at http://127.0.0.1:9090 sees the servers"
    )


def test_a_container_of_others_is_named(tmp_path: Path) -> None:
    ps = "blog\t/srv/blog\t0.0.0.0:8000-8001->80-81/tcp, [::]:8000-8001->80-81/tcp"
    probes = well(
        run=commands(ps=said(ps)),
        port=lambda number: PortUse("taken" if number in (8000, 8001) else "free"),
        served_model=lambda url: None,
    )
    report = look(clone(tmp_path), probes)
    row = row_of(report, "port_paged")
    assert row.found == "8000 is taken by the container blog"
    assert row.remedy == (
        "end that, or name another port: PAGED_PORT in .env, or kvknee up --paged-port"
    )


def test_a_server_of_the_user_can_be_load_tested_without_a_stack(tmp_path: Path) -> None:
    probes = well(
        port=lambda number: (
            PortUse("taken", Holder(7, "vllm")) if number == 8000 else PortUse("free")
        )
    )
    row = row_of(look(clone(tmp_path), probes), "port_paged")
    assert row.found == "8000 is taken by pid 7 (vllm), which serves tiny"
    assert row.remedy.endswith("--backends mine=http://127.0.0.1:8000")


def test_a_port_of_env_is_looked_at_in_place_of_the_default(tmp_path: Path) -> None:
    probes = well(
        run=commands(version=said("", 1)),
        port=lambda number: PortUse("taken" if number == 8000 else "free"),
        served_model=lambda url: None,
    )
    report = look(clone(tmp_path, env="PAGED_PORT=18000 # moved\n"), probes)
    compose, local = rows_of(report, "port_paged")
    assert (compose.found, compose.ways) == ("18000 is free", ("compose",))
    assert (local.status.value, local.ways) == ("fault", ("local",))
    assert local.remedy == "end that, or name another port: kvknee up --paged-port"


def test_a_port_that_is_no_number_names_its_line_and_not_its_value(tmp_path: Path) -> None:
    clone(tmp_path, env="# ports\nPAGED_PORT=s3cret\n")
    report = look(tmp_path, well(run=commands(version=said("", 1))))
    found = rows_of(report, "port_paged")[0].found
    assert found == "PAGED_PORT in .env (line 2) is no port number"


def test_the_harness_port_is_a_warning_unless_it_was_named(tmp_path: Path) -> None:
    def port(number: int) -> PortUse:
        return PortUse("taken", Holder(9, "python3")) if number == 9646 else PortUse("free")

    report = look(clone(tmp_path), well(port=port))
    assert warnings(report) == ["port_harness"]
    named = well(port=port, environment={"KVKNEE_METRICS_PORT": "9646"})
    assert faults(look(tmp_path, named)) == ["port_harness"]
    none = well(port=port, environment={"KVKNEE_METRICS_PORT": "none"})
    assert rows_of(look(tmp_path, none), "port_harness") == []
    with pytest.raises(OptionError, match="--metrics-port"):
        look(tmp_path, well(environment={"KVKNEE_METRICS_PORT": "99999"}))


def test_prometheus_that_does_not_see_the_servers_is_a_warning(tmp_path: Path) -> None:
    def prometheus(url: str, targets: Any) -> str:
        raise PrometheusFaultError("Prometheus at X does not scrape paged")

    def port(number: int) -> PortUse:
        return PortUse("taken" if number == 9090 else "free")

    run = commands(version=said("", 1))
    report = look(clone(tmp_path), well(run=run, prometheus=prometheus, port=port))
    assert row_of(report, "prometheus").status.value == "warning"
    assert "http://127.0.0.1:9090/targets" in row_of(report, "prometheus").remedy
    free = well(run=run, prometheus=prometheus)
    assert row_of(look(tmp_path, free), "prometheus").found == (
        "not up yet; docker compose up starts it"
    )
    # `kvknee up` has no Prometheus of its own: what else listens there is none of its business
    local = look(tmp_path, well(prometheus=prometheus), local=True)
    assert row_of(local, "prometheus").found.startswith("none is used")
    off = well(prometheus=prometheus, environment={"KVKNEE_PROMETHEUS_URL": "none"})
    assert row_of(look(tmp_path, off, local=True), "prometheus").status.value == "ok"


def test_a_damaged_state_is_a_fault(tmp_path: Path) -> None:
    stack = LocalStack(problem="state.json: not readable; end the servers by hand")
    report = look(clone(tmp_path), well(local_stack=lambda home: stack))
    assert faults(report) == ["local_state"]
