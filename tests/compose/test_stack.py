"""The CPU stack of our Compose files on a real Docker engine, loaded from both places.

The bases (Python, Prometheus) are stand-ins made of Debian's packages; everything above them
is built from our Dockerfiles, and vLLM is the real one. Grafana's image cannot be had without
a registry, and the GPU file needs a GPU: neither is run here.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.nightly.history import History
from harness.observe.collect import all_series
from harness.rundir import RunDir
from tests.compose.ability import asked, why_not
from tests.compose.engine import Engine, docker_engine
from tests.compose.files import CPU, GPU, ROOT, documented
from tests.compose.running import SERVICES, SETTINGS, RunningStack, running_stack
from tests.observe.support import until
from tests.support.local_stack import newest_run

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1500)]

LOAD = {
    "KVKNEE_LEVELS": "1,4",
    "KVKNEE_PROMPT_TOKENS": "128",
    "KVKNEE_OUTPUT_TOKENS": "32",
    "KVKNEE_MIN_REQUESTS": "10,20",
}
GENERATED = '{__name__=~"vllm:generation_tokens_total|contiguous_generation_tokens_total"}'
#: the harness asks each server for one short answer before the load
PROBE_TOKENS = 8


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    reason = why_not(os.environ)
    if reason is not None:
        assert not asked(os.environ), reason
        pytest.skip(reason)
    with docker_engine() as running:
        yield running
    assert not running.folder.exists()
    assert not psutil.pid_exists(running.pid)
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{running.folder.name}"))
    until(lambda: not disks_of(running.folder), "its disk to be let go")


def disks_of(folder: Path) -> list[str]:
    """Loop devices whose file lies (or lay) in the folder."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [file.parts[3] for file in files if folder.name in file.read_text()]


@pytest.fixture(scope="module")
def stack(engine: Engine) -> Iterator[RunningStack]:
    with running_stack(engine) as running:
        yield running


def test_everything_is_healthy_and_the_model_was_made(stack: RunningStack) -> None:
    containers = stack.containers()
    assert set(containers) == {"model", *SERVICES}
    assert {containers[name]["Health"] for name in SERVICES} == {"healthy"}
    model = containers["model"]
    assert (model["State"], model["ExitCode"]) == ("exited", 0)
    assert "tiny is in /models/tiny" in stack.compose("logs", "model").stdout


def test_containers_have_no_rights_beyond_their_work(stack: RunningStack) -> None:
    for name in SERVICES:
        container = stack.inspect(name)
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert stack.execute(name, "id", "-u").stdout.strip() != "0"
        assert stack.execute(name, "touch", "/file").returncode != 0
        bound = [b for found in container["NetworkSettings"]["Ports"].values() for b in found]
        assert {b["HostIp"] for b in bound} == {"127.0.0.1"}
    assert stack.execute("paged", "touch", "/models/file").returncode != 0


def test_prometheus_runs_our_configuration(stack: RunningStack) -> None:
    stack.wait_for_scrapes()
    assert stack.query('up{job="servers"}') == {"paged": 1, "contiguous": 1}
    files = sorted((ROOT / "dashboards/prometheus/rules").glob("*.yml"))
    groups = stack.prometheus("/api/v1/rules")["groups"]
    assert {Path(group["file"]).name for group in groups} == {file.name for file in files}
    health = {rule["health"] for group in groups for rule in group["rules"]}
    assert health <= {"ok", "unknown"}


def test_the_scenario_on_this_machine_and_prometheus_holds_the_run(
    stack: RunningStack, tmp_path: Path
) -> None:
    # where a container finds this machine, asked for as docs/compose.md does
    found = stack.execute(
        "prometheus", "awk", "/host.docker.internal/ {print $1; exit}", "/etc/hosts"
    )
    stack.wait_for_scrapes()
    before = stack.query(GENERATED)
    # the interpreter's own folder of packages is ours; the working tree is what is tested
    done = stack.engine.run(
        stack.engine.in_box(
            *(sys.executable, "-m", "locust", "-f", "scenarios/concurrency.py", "--headless"),
            *("--prometheus-url", "http://127.0.0.1:9090"),
        ),
        timeout_s=300,
        cwd=ROOT,
        environment={
            **LOAD,
            "KVKNEE_BACKENDS": f"paged=http://127.0.0.1:{SETTINGS['PAGED_PORT']},"
            "contiguous=http://127.0.0.1:8001",
            "KVKNEE_HOME": str(tmp_path / "home"),
            "KVKNEE_RESULTS_DIR": str(tmp_path / "results"),
            "KVKNEE_METRICS_HOST": found.stdout.strip(),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert done.returncode == 0, done.stdout[-6000:]
    run = RunDir.open(newest_run(tmp_path / "results"))
    assert (run.path / "report.html").is_file()
    manifest = run.manifest()
    assert manifest.prometheus_url == "http://127.0.0.1:9090"
    stack.wait_for_scrapes()
    after = stack.query(GENERATED)
    series = all_series(run, manifest)
    for backend in ("paged", "contiguous"):
        records = [r for r in run.records() if r.cell.backend == backend]
        assert {r.outcome for r in records} == {"ok"}
        # 10 requests at level 1 and 20 at level 4 at least
        assert len(records) >= 10 + 20
        ours = 32 * len(records)
        assert ours <= after[backend] - before.get(backend, 0) <= ours + PROBE_TOKENS
        assert series[backend].source == "prometheus", series[backend].failures
        assert series[backend].values["kv_used_bytes"].v.max() > 0
    own = 'max_over_time(up{job="harness",instance="host.docker.internal:9646"}[10m])'
    assert stack.query(own) == {"host.docker.internal:9646": 1}, done.stdout[:3000]


def test_the_load_in_a_container(stack: RunningStack) -> None:
    """The `load` profile: its results stay in the volume, Prometheus scrapes it by its name."""
    built = stack.compose("build", "load", timeout_s=300)
    assert built.returncode == 0, built.stdout[-3000:]
    done = stack.compose("run", "--rm", "-T", "--use-aliases", "load", timeout_s=300, settings=LOAD)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "report: /results/" in done.stdout
    listing = stack.compose(
        "run", "--rm", "-T", "--no-deps", "--entrypoint", "ls", "load", "/results"
    )
    assert "-concurrency" in listing.stdout
    own = 'max_over_time(up{job="harness",instance="load:9646"}[10m])'
    assert stack.query(own) == {"load:9646": 1}, done.stdout[:3000]


NIGHT = """
suite = "containers"

[[run]]
name = "short"
scenario = "concurrency"
backends = ["paged", "contiguous"]
model = "tiny"
levels = [2]
prompt_tokens = 128
output_tokens = 32
repeats = 1
kv_budget = "8MiB"
options = { min-requests = "10", min-level-seconds = "1" }

[compose]
files = ["{gpu}", "{cpu}"]

[gate]
primary = [{ run = "short", backend = "paged", level = 2, metric = "tpot_p50_s" }]
"""


def test_a_night_starts_containers_of_its_own(stack: RunningStack, tmp_path: Path) -> None:
    """Beside the stack that is up: other ports, other names, and nothing left but volumes."""
    suite = tmp_path / "night.toml"
    suite.write_text(NIGHT.replace("{gpu}", str(GPU)).replace("{cpu}", str(CPU)))
    before = stack.engine.docker("ps", "--all", "--format", "{{.Names}}").split()
    command = (sys.executable, "-m", "harness", "nightly", str(suite))
    done = stack.engine.run(
        stack.engine.in_box(
            *command,
            *("--results-dir", str(tmp_path / "results"), "--home", str(tmp_path / "home")),
        ),
        timeout_s=600,
        cwd=ROOT,
        environment={
            # what this shell exports would count as a setting
            **{name: "" for name in documented() if name in os.environ},
            "KVKNEE_METRICS_PORT": "none",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
    )
    # one night and one repeat are no baseline and no verdict
    assert done.returncode == 2, done.stdout[-6000:]
    with History.open(tmp_path / "results" / "history.sqlite") as history:
        (night,) = history.runs()
        setups = history.setups(night.run_id)
    assert {facts["asked.servers"] for facts in setups.values()} == {"compose"}
    assert {facts["asked.kv_budget_bytes"] for facts in setups.values()} == {8 * 2**20}
    assert setups["short/paged"]["backend.kind"] == "vllm"
    (manifest,) = (tmp_path / "results" / "nightly").glob("*/runs/*/manifest.json")
    records = RunDir.open(manifest.parent).records()
    ended = Counter((record.cell.backend, record.outcome) for record in records)
    # 10 requests of each at least
    assert set(ended) == {("paged", "ok"), ("contiguous", "ok")} and min(ended.values()) >= 10
    assert stack.engine.docker("ps", "--all", "--format", "{{.Names}}").split() == before
