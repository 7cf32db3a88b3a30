"""``locust -f scenarios/concurrency.py`` end to end, against servers that the test makes."""

from __future__ import annotations

import resource
import shutil
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from harness.records import RunEvent
from harness.report.build import build_report
from harness.rundir import RunDir
from tests.scenarios.locust_process import (
    QUICK,
    end,
    events_of,
    headless,
    page_answers,
    records_of,
    run_dirs,
    started,
    wait_until,
)
from tests.support.fake_openai import VLLM_PAGE, FakeOpenAi, serve
from tests.support.scripted_server import text_chunk


def kinds(events: list[RunEvent]) -> list[str]:
    return [event.kind for event in events if event.kind != "client_sample"]


def test_a_run_from_options_to_report(tmp_path: Path) -> None:
    paged = FakeOpenAi(metrics=VLLM_PAGE, version={"version": "0.32.0"})
    with serve(paged) as a, serve(FakeOpenAi()) as b:
        ended = headless("--backends", f"paged={a.url},other={b.url}", *QUICK, folder=tmp_path)
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    manifest = run.manifest()
    assert (manifest.status, manifest.workload.scenario) == ("complete", "concurrency")
    assert [info.kind for info in manifest.backends] == ["vllm", "openai"]
    assert manifest.fingerprint["paged.num_blocks"] == 128
    assert manifest.t_end_s is not None
    events = events_of(run)
    level = ["level_start", "window_close", "level_end"]
    assert kinds(events) == ["run_start", *level * 4, "run_end"]
    starts = [event.cell for event in events if event.kind == "level_start"]
    assert [(c.backend, c.level) for c in starts if c is not None] == [
        ("paged", 1),
        ("other", 1),
        ("other", 2),
        ("paged", 2),
    ]
    records = records_of(run)
    assert {record.outcome for record in records} == {"ok"}
    assert {len(record.token_us) for record in records} == {4}
    assert {record.prompt_tokens for record in records} == {8}
    assert len({record.prompt_hash for record in records}) == len(records)
    # the reader's seconds are the manifest's: one monotonic clock
    assert all(manifest.t0_s <= r.t_intended_s <= r.t_end_s <= manifest.t_end_s for r in records)
    assert list(run.scrapes("paged"))
    assert (run.path / "report.html").is_file()
    assert (run.path / "summary.json").is_file()
    # what the user sees last
    assert str(run.path / "report.html") in ended.out.splitlines()[-1]
    # Locust's own table has the rows, for the eye
    for row in ("TTFT     paged c1", "TPOT     paged c1", "E2E      other c2"):
        assert row in ended.text


def test_requests_that_fail_give_exit_code_1(tmp_path: Path) -> None:
    fake = FakeOpenAi(fault=lambda peer, _: peer.reply(503, {"detail": "queue full"}))
    with serve(fake) as server:
        ended = headless("--backends", f"a={server.url}", *QUICK, folder=tmp_path)
    assert ended.code == 1, ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "complete"
    assert {r.outcome for r in records_of(run)} == {"rejected"}
    assert "--max-failure-rate" in ended.err
    # failures are Locust's failures too
    assert "rejected: HTTP 503: queue full" in ended.text


def test_few_enough_failures_give_exit_code_0(tmp_path: Path) -> None:
    fake = FakeOpenAi(fault=lambda peer, _: peer.reply(503, {"detail": "queue full"}))
    with serve(fake) as server:
        more = ("--max-failure-rate", "1", "--levels", "1")
        ended = headless("--backends", f"a={server.url}", *QUICK, *more, folder=tmp_path)
    assert ended.code == 0, ended.text


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--levels", "0"), "--levels: '0' is not valid; expected rising whole numbers"),
        (("--slo", "tttf:5"), "--slo: 'tttf:5' is not valid"),
        (("--model", "gpt"), "does not serve the model 'gpt'; it serves m (--model)"),
        (("--levls", "1"), "unrecognized arguments: --levls"),
        (("--backends", f"a=http://127.0.0.1:{closed_port()}"), "cannot be reached"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with serve(FakeOpenAi()) as server:
        ended = headless("--backends", f"a={server.url}", *options, folder=tmp_path)
    assert ended.code == 2
    assert words in ended.last_error()
    assert run_dirs(tmp_path) == []


def test_the_options_can_be_listed(tmp_path: Path) -> None:
    ended = headless("--scenario-help", folder=tmp_path)
    assert ended.code == 0
    assert "--min-requests" in ended.text


def test_bad_input_is_said_before_the_web_page_is_up(tmp_path: Path) -> None:
    port = closed_port()
    with started("--backends", f"a=http://127.0.0.1:{port}", folder=tmp_path) as process:
        ended = end(process)
    assert ended.code == 2
    assert f"http://127.0.0.1:{port}" in ended.last_error()


def test_a_server_that_does_not_stream_is_refused(tmp_path: Path) -> None:
    body = {"choices": [{"text": "x", "finish_reason": "length"}]}
    fake = FakeOpenAi(fault=lambda peer, _: peer.reply(200, body), streams=1)
    with serve(fake) as server:
        ended = headless("--backends", f"a={server.url}", folder=tmp_path)
    assert ended.code == 2
    assert "does not stream" in ended.last_error()


def test_a_results_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with serve(FakeOpenAi()) as server:
        ended = headless("--backends", f"a={server.url}", folder=tmp_path)
    assert ended.code == 2
    assert "--results-dir" in ended.last_error()


def test_a_killed_server_ends_the_run_by_itself(tmp_path: Path) -> None:
    fake = FakeOpenAi()
    with serve(fake) as server, serve(FakeOpenAi()) as other:
        fake.fault = lambda peer, request: hold(peer)

        def hold(peer: object) -> None:
            # two tokens, then nothing until the server dies
            peer.headers()  # type: ignore[attr-defined]
            peer.chunk(text_chunk("x") * 2)  # type: ignore[attr-defined]
            peer.wait_closed()  # type: ignore[attr-defined]

        backends = f"a={server.url},b={other.url}"
        with started("--headless", "--backends", backends, *QUICK, folder=tmp_path) as process:
            wait_until(lambda: fake.streams >= 2)
            server.kill()
            killed_s = time.monotonic()
            ended = end(process)
    assert time.monotonic() - killed_s < 60
    assert ended.code == 1, ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "failed"
    events = events_of(run)
    assert kinds(events) == [
        *("run_start", "level_start", "backend_lost", "level_end"),
        *["level_skipped"] * 3,
        "run_end",
    ]
    outcomes = [record.outcome for record in records_of(run)]
    assert outcomes[0] in ("truncated", "reset")
    assert set(outcomes[1:]) <= {"connect", "cancelled"}
    # it waited between tries: half a second each, over some seconds
    assert 3 < len(outcomes) < 60
    assert "backend a no longer answers" in ended.err
    assert (run.path / "report.html").is_file()


def test_a_server_killed_while_another_is_loaded_ends_the_run_too(tmp_path: Path) -> None:
    other = FakeOpenAi()
    # the level of b goes on until the run ends
    other.gate.clear()
    with serve(FakeOpenAi()) as server, serve(other) as loaded:
        backends = f"a={server.url},b={loaded.url}"
        with started("--headless", "--backends", backends, *QUICK, folder=tmp_path) as process:
            wait_until(lambda: other.streams >= 2)
            server.kill()
            ended = end(process)
        other.gate.set()
    assert ended.code == 1, ended.text
    assert "backend a no longer answers" in ended.err
    (run,) = run_dirs(tmp_path)
    (lost,) = [event for event in events_of(run) if event.kind == "backend_lost"]
    assert (lost.detail["backend"], lost.cell) == ("a", None)
    assert "a stopped answering before its turn" in (run.path / "report.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_can_be_read(number: signal.Signals, tmp_path: Path) -> None:
    fake = FakeOpenAi()
    # the level's requests stop after their first token
    fake.gate.clear()
    with serve(fake) as server:
        options = ("--headless", "--backends", f"a={server.url}", *QUICK)
        with started(*options, folder=tmp_path) as process:
            wait_until(lambda: fake.streams >= 2)
            process.send_signal(number)
            ended = end(process)
        fake.gate.set()
    assert ended.code == 1, ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "interrupted"
    assert kinds(events_of(run)) == [
        *("run_start", "level_start", "interrupted", "level_end", "level_skipped", "run_end")
    ]
    assert "cancelled" in {record.outcome for record in records_of(run)}
    assert (run.path / "report.html").is_file()


def test_more_ctrl_c_does_not_lose_the_report(tmp_path: Path) -> None:
    fake = FakeOpenAi()
    fake.gate.clear()
    with serve(fake) as server:
        options = ("--headless", "--backends", f"a={server.url}", *QUICK)
        with started(*options, folder=tmp_path) as process:
            wait_until(lambda: fake.streams >= 2)
            process.send_signal(signal.SIGINT)
            # the run has ended and its report is not there yet
            wait_until(lambda: "run_end" in kinds(events_of(run_dirs(tmp_path)[0])))
            process.send_signal(signal.SIGINT)
            ended = end(process)
        fake.gate.set()
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "interrupted"
    assert (run.path / "report.html").is_file()


def test_a_run_whose_directory_is_deleted_ends_with_exit_code_1(tmp_path: Path) -> None:
    fake = FakeOpenAi()
    fake.gate.clear()
    with serve(fake) as server:
        options = ("--headless", "--backends", f"a={server.url}", *QUICK)
        with started(*options, folder=tmp_path) as process:
            wait_until(lambda: fake.streams >= 2)
            shutil.rmtree(run_dirs(tmp_path)[0].path)
            ended = end(process)
        fake.gate.set()
    assert ended.code == 1, ended.text
    assert "is gone" in ended.err
    assert "Traceback" not in ended.text


def small_files() -> None:
    """As a disk that is full after 20 kB per file: writes fail with EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_ends_the_run_and_leaves_what_was_written(tmp_path: Path) -> None:
    more = ("--min-requests", "1000", "--levels", "2")
    with serve(FakeOpenAi()) as server:
        ended = headless(
            "--backends",
            f"a={server.url}",
            *QUICK,
            *more,
            folder=tmp_path,
            before_exec=small_files,
        )
    assert ended.code == 1, ended.text
    assert "records.jsonl" in ended.err
    run = RunDir.open(next((tmp_path / "results").iterdir()))
    assert len(records_of(run)) > 10
    # with room again the report is made from what is there
    build_report(run.path)
    assert (run.path / "report.html").is_file()


def test_the_web_page_makes_a_run_of_each_start(tmp_path: Path) -> None:
    port = closed_port()
    with (
        serve(FakeOpenAi()) as server,
        started(
            *("--web-host", "127.0.0.1", "--web-port", str(port)),
            *("--backends", f"a={server.url}", *QUICK, "--api-key", "sk-secret"),
            folder=tmp_path,
        ) as process,
    ):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as page:
            wait_until(lambda: page_answers(page))
            shown = page.get("/").text
            # the options are on the page, the key is not
            assert "min_requests" in shown
            assert "sk-secret" not in shown
            for done in (1, 2):
                assert page.post("/swarm", data={"levels": "1"}).json()["success"]
                wait_until(lambda n=done: finished_runs(tmp_path) == n, 60)
                wait_until(lambda: state(page) == "stopped")
            # a bad value ends that test with a log line, and the page stays
            assert page.post("/swarm", data={"levels": "zero"}).json()["success"]
            wait_until(lambda: state(page) == "stopped", 60)
            assert finished_runs(tmp_path) == 2
        process.send_signal(signal.SIGTERM)
        ended = end(process)
    assert "--levels: 'zero' is not valid" in ended.err
    assert "Traceback" not in ended.text
    first, second = run_dirs(tmp_path)
    assert first.manifest().status == second.manifest().status == "complete"
    assert "sk-secret" not in ended.text
    for run in (first, second):
        assert "sk-secret" not in (run.path / "manifest.json").read_text()


def state(page: httpx.Client) -> object:
    return page.get("/stats/requests").json()["state"]


def finished_runs(folder: Path) -> int:
    """Run directories whose report is made."""
    return len(list((folder / "results").glob("*/report.html")))
