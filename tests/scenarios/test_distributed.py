"""``--processes``, ``--master`` and ``--worker``: real processes against servers that count."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from harness.records import RequestRecord
from harness.rundir import RunDir
from tests.scenarios.locust_process import (
    QUICK,
    ROOT,
    Ended,
    end,
    events_of,
    headless,
    page_answers,
    records_of,
    run_dirs,
    started,
    wait_until,
)
from tests.scenarios.test_concurrency import closed_port, finished_runs, state
from tests.scenarios.worker_processes import (
    ENDLESS,
    KEY,
    Counted,
    here,
    identities,
    mid_level,
    of_kind,
    ports,
    temporary,
    workers,
)
from tests.support.fake_openai import FakeOpenAi, serve
from tests.support.scripted_server import Peer, Request, ScriptedServer


@pytest.mark.slow
def test_processes_share_a_run(tmp_path: Path) -> None:
    server = Counted()
    with serve(server.fake) as a:
        options = ("--backends", f"a={a.url}", *QUICK, "--levels", "1,5")
        ended = headless("--processes", "2", *here(), *options, folder=tmp_path)
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    records, manifest = records_of(run), run.manifest()
    assert manifest.status == "complete"
    assert manifest.environment["workers"] == 2
    assert manifest.environment["worker_w2_clock_offset_s"] == 0.0
    # what the workers wrote is what the server was asked
    assert len(records) == server.asked
    assert len(identities(records)) == len(records)
    assert set(server.prompts.values()) == {1}
    # at level 5 both have users, numbered through; at level 1 one has none
    five = [record for record in records if record.cell.level == 5]
    assert {record.worker for record in five} == {"w1", "w2"}
    assert {record.user for record in five} == set(range(5))
    assert {len({r.worker for r in five if r.user == user}) for user in range(5)} == {1}
    assert len({r.worker for r in records if r.cell.level == 1}) == 1
    events = events_of(run)
    kinds = [event.kind for event in events if event.kind != "client_sample"]
    level = ["level_start", "window_close", "level_end"]
    assert kinds == ["run_start", *level * 2, "run_end"]
    assert {e.detail["worker"] for e in of_kind(events, "client_sample")} == {"w1", "w2"}
    # Locust's own table, too
    assert "TTFT     a c5" in ended.text
    assert (run.path / "report.html").is_file()


def test_a_master_and_two_workers(tmp_path: Path) -> None:
    server = Counted()
    master, join = ports()
    key = ("--api-key", KEY)
    with serve(server.fake) as a, workers(join, *key, folder=tmp_path) as crew:
        options = ("--backends", f"a={a.url}", *QUICK, *key)
        ended = headless("--master", "--expect-workers", "2", *master, *options, folder=tmp_path)
        others = [end(mate) for mate in crew]
    assert ended.code == 0, ended.text
    assert [other.code for other in others] == [0, 0], others
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    assert len(records) == server.asked == len(identities(records))
    for one in (ended, *others):
        assert KEY not in one.text
        assert "Traceback" not in one.text
    assert all(KEY.encode() not in path.read_bytes() for path in run.path.rglob("*.json*"))
    # nothing is left of what the workers kept
    assert not [path for path in temporary(run) if path.exists()]


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_and_is_named(tmp_path: Path) -> None:
    server = Counted()
    master, join = ports()
    with serve(server.fake) as a, workers(join, folder=tmp_path) as crew:
        options = ("--headless", "--backends", f"a={a.url}", *ENDLESS)
        with started(
            "--master", "--expect-workers", "2", *master, *options, folder=tmp_path
        ) as process:
            wait_until(lambda: mid_level(tmp_path))
            crew[0].kill()
            ended = end(process)
        other = end(crew[1])
    assert ended.code == 1, ended.text
    assert other.code == 0, other.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "failed"
    events, records = events_of(run), records_of(run)
    (lost,) = of_kind(events, "worker_lost")
    assert lost.detail["pid"] == crew[0].pid
    mine = [record.seq for record in records if record.worker == lost.detail["worker"]]
    # all of it up to what is stated, each once
    assert len(mine) == lost.detail["records"]
    assert max(mine) == lost.detail["last_seq"]
    assert len(identities(records)) == len(records)
    assert len(records) < server.asked
    (ended_level,) = of_kind(events, "level_end")
    assert ended_level.detail == {"reason": "worker_lost"}
    report = (run.path / "report.md").read_text()
    assert str(lost.detail["worker"]) in report
    assert "was lost" in report
    # only the dead worker has left something: its own journal, the lost records included
    (folder,) = temporary(run)
    kept = identities(list(RunDir(folder).records()))
    assert {(str(lost.detail["worker"]), seq) for seq in mine} <= kept
    shutil.rmtree(folder)


@pytest.mark.parametrize("to_all", [False, True])
def test_ctrl_c_keeps_all_records(to_all: bool, tmp_path: Path) -> None:
    """A terminal sends it to the master and its workers alike; a script to the master alone."""
    server = Counted()
    with serve(server.fake) as a:
        options = ("--processes", "2", *here(), "--headless", "--backends", f"a={a.url}", *ENDLESS)
        with started(*options, folder=tmp_path, before_exec=os.setpgrp) as process:
            wait_until(lambda: mid_level(tmp_path))
            if to_all:
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
            ended = end(process)
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    assert run.manifest().status == "interrupted"
    assert not of_kind(events_of(run), "worker_lost")
    assert len(identities(records)) == len(records)
    # requests cut off are records, too; one cut off before its first byte was never asked
    assert len([record for record in records if record.t_sent_s is not None]) == server.asked


@pytest.mark.slow
def test_a_worker_that_is_stopped_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    server = Counted()
    with serve(server.fake) as a:
        options = ("--headless", "--backends", f"a={a.url}", *ENDLESS)
        with started("--processes", "2", *here(), *options, folder=tmp_path) as process:
            wait_until(lambda: mid_level(tmp_path))
            psutil.Process(process.pid).children()[0].send_signal(signal.SIGTERM)
            ended = end(process)
    assert ended.code == 1, ended.text
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    assert run.manifest().status == "interrupted"
    assert not of_kind(events_of(run), "worker_lost")
    assert len([record for record in records if record.t_sent_s is not None]) == server.asked
    assert "was stopped; the run ends" in ended.err


@pytest.mark.slow
def test_workers_whose_master_dies_end_and_keep_their_records(tmp_path: Path) -> None:
    server = Counted()
    master, join = ports()
    with serve(server.fake) as a, workers(join, folder=tmp_path) as crew:
        options = ("--headless", "--backends", f"a={a.url}", *ENDLESS)
        with started(
            "--master", "--expect-workers", "2", *master, *options, folder=tmp_path
        ) as process:
            wait_until(lambda: mid_level(tmp_path))
            process.kill()
            end(process)
        others = [end(mate) for mate in crew]
    (run,) = run_dirs(tmp_path)
    shipped = identities(records_of(run))
    kept: list[RequestRecord] = []
    for other in others:
        assert other.code == 1, other.text
        (line,) = [line for line in other.err.splitlines() if "lie in " in line]
        own = RunDir(Path(line.rpartition("lie in ")[2]))
        kept += own.records()
        for path in own.path.iterdir():
            path.unlink()
        own.path.rmdir()
    # each worker's own journal has all that it made, the shipped ones included
    assert shipped <= identities(kept)
    assert len([record for record in kept if record.t_sent_s is not None]) == server.asked


@contextmanager
def changed_worker(change: str, join: tuple[str, ...]) -> Generator[subprocess.Popen[bytes]]:
    """A worker process in which something is changed first."""
    argv = ["locust", "-f", "scenarios/concurrency.py", "--worker", *join]
    script = f"import sys\n{change}\nsys.argv = {argv!r}\nfrom locust.main import main\nmain()\n"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KVKNEE", "LOCUST"))}
    worker = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with worker:
        try:
            yield worker
        finally:
            worker.kill()


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    master, join = ports()
    with (
        serve(FakeOpenAi()) as a,
        changed_worker("import harness; harness.__version__ = '0.0.1'", join) as worker,
    ):
        options = ("--backends", f"a={a.url}", *QUICK)
        ended = headless("--master", *master, *options, folder=tmp_path)
        worker.wait(60)
    assert ended.code == 2, ended.text
    assert "has kvknee 0.0.1, the master " in ended.err
    assert run_dirs(tmp_path) == []


@pytest.mark.slow
def test_a_worker_with_another_clock_tells_the_masters_time(tmp_path: Path) -> None:
    """As on another machine: its clock is 1,000 s ahead, and its kernel another."""
    server = Counted()
    master, join = ports()
    other = (
        "import time\n"
        "from harness.load.clock import SystemClock\n"
        "import harness.load.distributed.worker as worker\n"
        "SystemClock.monotonic = lambda self: time.monotonic() + 1000\n"
        "worker.boot_id = lambda: None"
    )
    with (
        serve(server.fake) as a,
        changed_worker(other, join) as away,
        workers(join, folder=tmp_path, count=1),
    ):
        options = ("--backends", f"a={a.url}", *QUICK, "--levels", "4")
        ended = headless("--master", "--expect-workers", "2", *master, *options, folder=tmp_path)
        away.wait(60)
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    records, manifest = records_of(run), run.manifest()
    facts = manifest.environment
    (name,) = [name for name in ("w1", "w2") if facts[f"worker_{name}_pid"] == away.pid]
    offset_s, error_s = (
        float(str(facts[f"worker_{name}_clock_{what}_s"])) for what in ("offset", "uncertainty")
    )
    assert abs(offset_s + 1000) <= error_s
    assert 0 < error_s < 1
    assert manifest.t_end_s is not None
    assert {record.worker for record in records} == {"w1", "w2"}
    for record in records:
        assert record.t_sent_s is not None
        assert manifest.t0_s - error_s <= record.t_sent_s <= record.t_end_s
        assert record.t_end_s <= manifest.t_end_s + error_s
        # no latency has anything of the offset
        assert sum(record.token_us) < 60_000_000
    samples = of_kind(events_of(run), "client_sample")
    assert all(abs(e.t_s - manifest.t0_s) < 600 for e in samples)
    assert len(records) == server.asked == len(identities(records))


def test_a_worker_without_the_key_is_refused(tmp_path: Path) -> None:
    def guarded(peer: Peer, request: Request) -> None:
        if request.headers.get("authorization") == f"Bearer {KEY}":
            fake(peer, request)
        else:
            peer.reply(401, {"detail": "who are you"})

    fake = FakeOpenAi()
    master, join = ports()
    with ScriptedServer(guarded) as a, workers(join, folder=tmp_path, count=1) as (mate,):
        options = ("--backends", f"a={a.url}", *QUICK, "--api-key", KEY)
        ended = headless("--master", *master, *options, folder=tmp_path)
        other = end(mate)
    assert ended.code == 2, ended.text
    assert "refuses the API key" in ended.err
    assert "worker w1" in ended.err
    assert KEY not in ended.text + other.text
    assert run_dirs(tmp_path) == []


@pytest.mark.slow
def test_the_web_page_of_a_master(tmp_path: Path) -> None:
    server = Counted()
    web = closed_port()
    master, join = ports()
    with serve(server.fake) as a:
        options = ("--web-host", "127.0.0.1", "--web-port", str(web), "--backends", f"a={a.url}")
        with (
            started("--master", *master, *options, *QUICK, folder=tmp_path) as process,
            httpx.Client(base_url=f"http://127.0.0.1:{web}", timeout=20) as page,
        ):
            wait_until(lambda: page_answers(page))
            # without workers it says so, and waits for the next press
            assert page.post("/swarm", data={"levels": "1"}).json()["success"]
            wait_until(lambda: state(page) != "spawning")
            with workers(join, folder=tmp_path) as crew:
                wait_until(lambda: len(page.get("/stats/requests").json()["workers"]) == 2)
                for done in (1, 2):
                    wait_until(lambda: state(page) in ("ready", "stopped"))
                    assert page.post("/swarm", data={"levels": "2"}).json()["success"]
                    wait_until(lambda n=done: finished_runs(tmp_path) == n)
                wait_until(lambda: state(page) in ("ready", "stopped"))
                process.send_signal(signal.SIGTERM)
                ended: Ended = end(process)
                for mate in crew:
                    assert "Traceback" not in end(mate).text
    assert "no worker is connected" in ended.err
    assert "Traceback" not in ended.text
    first, second = run_dirs(tmp_path)
    assert first.manifest().status == second.manifest().status == "complete"
    assert len(records_of(first)) + len(records_of(second)) == server.asked
