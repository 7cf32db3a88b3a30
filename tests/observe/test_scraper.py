from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe import scraper
from harness.observe.scraper import ScraperHandle, next_tick
from harness.records import Scrape
from harness.rundir import RunDir
from tests.observe.support import LOAD_A, MetricsServer, fixture, metrics_server, until
from tests.support.local_stack import free_port

KEY = "sk-very-secret-0123456789"
PAGE = "vllm:num_requests_running 1\n"


def scrapes(run: RunDir, target: str = "paged") -> list[Scrape]:
    return list(run.scrapes(target))


def until_scraped(run: RunDir, count: int, target: str = "paged") -> list[Scrape]:
    until(lambda: len(scrapes(run, target)) >= count, f"{count} scrapes of {target}")
    return scrapes(run, target)


def until_good(run: RunDir, count: int, target: str = "paged") -> list[Scrape]:
    """As many scrapes that brought a page: on a busy machine one may time out."""

    def good() -> list[Scrape]:
        return [scrape for scrape in run.scrapes(target) if scrape.text is not None]

    until(lambda: len(good()) >= count, f"{count} pages of {target}")
    return good()


@contextlib.contextmanager
def stopping(handle: ScraperHandle):  # type: ignore[no-untyped-def]
    try:
        yield handle
    finally:
        handle.stop(10)


@given(st.floats(0, 1e7), st.sampled_from([0.1, 0.5, 1.0]))
def test_the_grid_does_not_move(now_s: float, interval_s: float) -> None:
    tick = next_tick(now_s, interval_s)
    assert now_s < tick <= now_s + interval_s * 1.001
    assert tick / interval_s == pytest.approx(round(tick / interval_s))


def test_a_late_scrape_skips_points_and_keeps_the_grid() -> None:
    assert next_tick(10.2, 1.0) == 11.0
    assert next_tick(13.7, 1.0) == 14.0
    assert next_tick(14.0, 1.0) == 15.0


def test_raw_text_is_kept_until_it_is_stopped(run: RunDir, server: MetricsServer) -> None:
    server.text = fixture(LOAD_A)
    handle = scraper.start(run.path, {"paged": server.url}, 0.1)
    found = until_good(run, 5)
    assert handle.alive()
    assert handle.fault() is None
    handle.stop(10)
    assert not handle.alive()
    assert handle.fault() is None
    assert {scrape.text for scrape in found} == {fixture(LOAD_A)}
    # no compression is asked of the server under test
    assert server.encodings == {"identity"}
    starts = [scrape.t_s - scrape.took_s / 2 for scrape in found]
    # never two in one slot of the grid
    slots = [int((start + 1e-3) / 0.1) for start in starts]
    assert all(second > first for first, second in pairwise(slots))


def test_a_second_stop_does_nothing(run: RunDir, server: MetricsServer) -> None:
    handle = scraper.start(run.path, {"paged": server.url}, 0.1)
    handle.stop(10)
    handle.stop(10)
    assert handle.fault() is None


def test_dead_and_hanging_targets_do_not_hold_up_the_others(
    run: RunDir, server: MetricsServer
) -> None:
    server.text = PAGE
    with metrics_server() as hanging:
        hanging.answering.clear()
        targets = {
            "dead": f"http://127.0.0.1:{free_port()}/metrics",
            "hanging": hanging.url,
            "paged": server.url,
        }
        with stopping(scraper.start(run.path, targets, 0.2)):
            good = until_good(run, 6)
            until_scraped(run, 2, "dead")
            held = until_scraped(run, 2, "hanging")
    assert {scrape.text for scrape in good} == {PAGE}
    # pages were read while the hanging one was waited for
    assert any(abs(page.t_s - wait.t_s) < wait.took_s / 2 for page in good for wait in held)
    dead = scrapes(run, "dead")[0]
    assert (dead.status, dead.text) == (None, None)
    assert dead.error is not None
    assert dead.error.startswith("cannot connect")
    assert {scrape.error for scrape in scrapes(run, "hanging")} == {"no answer within 0.16 s"}


def test_a_page_that_drips_is_cut_off(run: RunDir) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with contextlib.suppress(OSError):
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                    while peer.send(b"x"):
                        threading.Event().wait(0.02)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        with stopping(scraper.start(run.path, {"paged": url}, 0.25)):
            (first, *_) = until_scraped(run, 1)
        assert first.error == "no answer within 0.2 s"
        thread.join(10)


def test_d96_an_error_page_is_a_failure(run: RunDir, server: MetricsServer) -> None:
    server.status, server.text = 500, "oops"
    with stopping(scraper.start(run.path, {"paged": server.url}, 0.2)):
        until(lambda: any(scrape.status for scrape in scrapes(run)), "an answer")
    (first, *_) = [scrape for scrape in scrapes(run) if scrape.status]
    assert (first.status, first.text, first.error) == (500, None, "HTTP 500")


def test_the_key_is_sent_to_servers_only_and_stands_nowhere(
    run: RunDir, server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    # a server that repeats what it was sent
    server.text = f'wanted{{authorization="Bearer {KEY}"}} 1\n'
    with metrics_server() as exporter:
        exporter.text = "DCGM_FI_DEV_FB_USED 1\n"
        targets = {"paged": server.url, "dcgm": exporter.url}
        with stopping(scraper.start(run.path, targets, 0.1, api_key=KEY)) as handle:
            (page, *_) = until_good(run, 1)
            until_good(run, 1, "dcgm")
            process = psutil.Process(handle.pid)
            assert KEY not in " ".join(process.cmdline())
            assert all(KEY not in value for value in process.environ().values())
        assert server.authorizations == {f"Bearer {KEY}"}
        assert exporter.authorizations == {None}
    assert page.text == 'wanted{authorization="Bearer ***"} 1\n'


def test_a_placeholder_key_does_not_spoil_the_page(run: RunDir, server: MetricsServer) -> None:
    server.text = 'info{sliding_window="None"} 1\n'
    with stopping(scraper.start(run.path, {"paged": server.url}, 0.2, api_key="None")):
        (page, *_) = until_good(run, 1)
    assert page.text == server.text


def test_without_targets_it_lives_until_it_is_stopped(run: RunDir) -> None:
    handle = scraper.start(run.path, {}, 0.1)
    with pytest.raises(subprocess.TimeoutExpired):
        handle._process.wait(1)
    handle.stop(10)
    assert (handle.alive(), handle.fault()) == (False, None)


def test_a_full_disk_ends_it_with_a_fault(run: RunDir, server: MetricsServer) -> None:
    server.text = PAGE
    run.scrape_path("paged").symlink_to("/dev/full")
    handle = scraper.start(run.path, {"paged": server.url}, 0.1)
    until(lambda: not handle.alive(), "the scraper to end")
    assert handle.fault() == f"scraper: {run.scrape_path('paged')}: No space left on device"
    handle.stop(10)
    assert handle.fault() == f"scraper: {run.scrape_path('paged')}: No space left on device"


def test_a_folder_that_is_gone_is_a_fault(tmp_path: Path, server: MetricsServer) -> None:
    handle = scraper.start(tmp_path / "nowhere", {"paged": server.url}, 0.1)
    until(lambda: not handle.alive(), "the scraper to end")
    handle.stop(10)
    assert "No such file or directory" in (handle.fault() or "")


def test_a_killed_scraper_is_a_fault(run: RunDir, server: MetricsServer) -> None:
    server.text = PAGE
    handle = scraper.start(run.path, {"paged": server.url}, 0.1)
    until_scraped(run, 1)
    os.kill(handle.pid, signal.SIGKILL)
    until(lambda: not handle.alive(), "the scraper to end")
    assert handle.fault() == "scraper: ended with exit code -9"
    handle.stop(10)


def test_one_that_does_not_stop_is_killed(run: RunDir, server: MetricsServer) -> None:
    server.text = PAGE
    handle = scraper.start(run.path, {"paged": server.url}, 0.1)
    until_scraped(run, 1)
    os.kill(handle.pid, signal.SIGSTOP)
    handle.stop(0.2)
    assert not handle.alive()
    assert handle.fault() == "scraper: did not stop when asked and was killed"
    assert scrapes(run)


def test_it_ends_when_the_load_is_killed(run: RunDir, server: MetricsServer) -> None:
    server.text = PAGE
    load = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib, time\n"
            "from harness.observe import scraper\n"
            "handle = scraper.start(pathlib.Path(sys.argv[1]), {'paged': sys.argv[2]}, 0.1)\n"
            "print(handle.pid, flush=True)\n"
            "time.sleep(60)\n",
            str(run.path),
            server.url,
        ],
        stdout=subprocess.PIPE,
    )
    assert load.stdout is not None
    child = psutil.Process(int(load.stdout.readline()))
    until_scraped(run, 1)
    load.kill()
    load.wait(10)
    load.stdout.close()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "its end")


def test_it_runs_beside_gevent(run: RunDir, server: MetricsServer) -> None:
    server.text = PAGE
    script = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import sys, pathlib, gevent\n"
        "from harness.observe import scraper\n"
        "handle = scraper.start(pathlib.Path(sys.argv[1]), {'paged': sys.argv[2]}, 0.2)\n"
        "path = pathlib.Path(sys.argv[1]) / 'scrapes' / 'paged.jsonl.gz'\n"
        "while handle.alive() and not (path.exists() and path.stat().st_size): gevent.sleep(0.02)\n"
        "handle.stop(10)\n"
        "assert not handle.alive() and handle.fault() is None, handle.fault()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.path), server.url], timeout=60, check=False
    )
    assert done.returncode == 0
    assert scrapes(run)


def test_process_memory_is_sampled_beside_the_page(run: RunDir, server: MetricsServer) -> None:
    server.text = PAGE
    pids = {"paged": os.getpid(), "gone": 2**22 + 1}
    with stopping(scraper.start(run.path, {"paged": server.url}, 0.1, pids=pids)):
        (sample, *_) = until_scraped(run, 1, "paged.process")
        (gone, *_) = until_scraped(run, 1, "gone.process")
    assert sample.text is not None
    assert "kvknee_process_tree_resident_bytes " in sample.text
    assert gone.error == f"process {2**22 + 1} has ended"


def test_a_bad_configuration_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.observe.scraper"],
        input=b'{"run_dir": 1}\n',
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == b""
    assert done.stdout.startswith(b"scraper: bad configuration: ")
    assert done.stdout.count(b"\n") == 1
