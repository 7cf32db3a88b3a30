"""The real scenario, and the page of its live metrics held against its records."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from harness.live.buckets import EDGES_NS
from harness.records import RequestRecord, token_times_us
from tests.live.support import Samples, names, samples, value
from tests.scenarios.locust_process import (
    QUICK,
    end,
    headless,
    page_answers,
    records_of,
    run_dirs,
    started,
    wait_until,
)
from tests.support.fake_openai import VLLM_PAGE, FakeOpenAi, serve
from tests.support.scripted_server import Peer, Request

PATIENCE_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def every_fifth_fails(fake: FakeOpenAi, peer: Peer, request: Request) -> None:
    if fake.streams % 5 == 0:
        peer.reply(503, {"detail": "queue full"})
    else:
        fake.answer(peer, request)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_page_agrees_with_the_records(processes: int, tmp_path: Path) -> None:
    web, metrics = free_port(), free_port()
    paged = FakeOpenAi(metrics=VLLM_PAGE, version={"version": "0.32.0"})
    paged.fault = lambda peer, request: every_fifth_fails(paged, peer, request)
    with serve(paged) as a, serve(FakeOpenAi()) as b:
        options = (
            *("--web-host", "127.0.0.1", "--web-port", str(web)),
            *("--metrics-port", str(metrics), "--slo", "ttft:2 e2e:3"),
            *("--backends", f"paged={a.url},other={b.url}", *QUICK, "--min-requests", "40"),
        )
        if processes > 1:
            port = str(free_port())
            options += ("--processes", str(processes))
            options += ("--master-bind-port", port, "--master-port", port)
        with started(*options, folder=tmp_path) as process:
            with httpx.Client(base_url=f"http://127.0.0.1:{web}", timeout=20) as page:
                wait_until(lambda: page_answers(page), PATIENCE_S)
                before = scrape(metrics)
                assert before == {}
                if processes > 1:
                    wait_until(lambda: workers(page) == processes, PATIENCE_S)
                assert page.post("/swarm", data={}).json()["success"]
                wait_until(lambda: reports(tmp_path) == 1, PATIENCE_S)
                # the page is another process's, which a busy machine may let wait
                wait_until(lambda: "kvknee_run_info" not in names(scrape(metrics)), PATIENCE_S)
                after = scrape(metrics)
                # and the process-wide options are not on the form
                assert "metrics_port" not in page.get("/").text
            process.send_signal(signal.SIGTERM)
            ended = end(process)
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    assert {r.outcome for r in records} == {"ok", "rejected"}
    compare(after, records)


def workers(page: httpx.Client) -> int:
    return len(page.get("/stats/requests").json()["workers"])


def reports(folder: Path) -> int:
    return len(list((folder / "results").glob("*/report.html")))


def scrape(port: int) -> Samples:
    return samples(httpx.get(f"http://127.0.0.1:{port}/metrics").text)


def compare(page: Samples, records: list[RequestRecord]) -> None:
    """Every count and every sum, cell by cell, to the last digit."""
    cells: dict[tuple[str, str, str], list[RequestRecord]] = defaultdict(list)
    for record in records:
        cell = record.cell
        cells[(cell.backend, cell.mode, f"{cell.level:g}")].append(record)
    assert len(cells) == 4
    for key, found in cells.items():
        labels = dict(zip(("backend", "mode", "level"), key, strict=True))
        outcomes = Counter(r.outcome for r in found)
        for outcome in ("ok", "rejected", "timeout"):
            shown = value(page, "kvknee_requests_total", **labels, outcome=outcome)
            assert shown == outcomes[outcome]
        good = [r for r in found if r.outcome == "ok"]
        prompt, output = (
            sum(r.prompt_tokens or 0 for r in good),
            sum(r.output_tokens or 0 for r in good),
        )
        assert value(page, "kvknee_prompt_tokens_total", **labels) == prompt
        assert value(page, "kvknee_output_tokens_total", **labels) == output
        met = sum(token_times_us(r)[0] <= 2000 and token_times_us(r)[-1] <= 3000 for r in good)
        assert value(page, "kvknee_good_requests_total", **labels) == met
        for name, values_ns in times_of(found).items():
            compare_histogram(page, name, labels, values_ns)


def times_of(records: list[RequestRecord]) -> dict[str, list[int]]:
    """The latencies of a cell in nanoseconds, by the design's definitions."""
    found: dict[str, list[int]] = defaultdict(list)
    for record in records:
        assert record.t_sent_s is not None
        found["send_lateness"].append(round((record.t_sent_s - record.t_intended_s) * 1e9))
        if record.outcome != "ok":
            continue
        times = token_times_us(record)
        found["ttft"].append(times[0] * 1000)
        found["e2e"].append(times[-1] * 1000)
        found["tpot"].append(round((times[-1] - times[0]) * 1000 / (len(times) - 1)))
        found["itl"] += [(b - a) * 1000 for a, b in pairwise(times)]
    return found


def compare_histogram(
    page: Samples, name: str, labels: dict[str, str], values_ns: list[int]
) -> None:
    full = f"kvknee_{name}_seconds"
    assert value(page, f"{full}_count", **labels) == len(values_ns)
    assert value(page, f"{full}_sum", **labels) == sum(values_ns) / 1e9
    for edge in EDGES_NS[name]:
        at_most = sum(v <= edge for v in values_ns)
        assert value(page, f"{full}_bucket", **labels, le=str(edge / 1e9)) == at_most


def test_a_scraper_has_the_last_figures_of_a_headless_run(tmp_path: Path) -> None:
    with serve(FakeOpenAi()) as server:
        options = ("--headless", "--backends", f"a={server.url}", *QUICK, "--metrics-port", "0")
        with started(*options, folder=tmp_path) as process:
            pages = scrape_until_it_ends(process)
            ended = end(process)
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    assert "kvknee_run_info" in {name for page in pages for name in names(page)}
    total = sum(
        number
        for (name, labels), number in pages[-1].items()
        if name == "kvknee_requests_total" and ("outcome", "ok") in labels
    )
    assert total == len(records_of(run))


def scrape_until_it_ends(process: subprocess.Popen[str]) -> list[Samples]:
    """Scrape as Prometheus does, until the port is closed."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"live metrics: (http://\S+/metrics)", line)
        if found:
            break
    else:
        raise AssertionError("no line names the page")
    pages: list[Samples] = []
    with httpx.Client(timeout=10) as client:
        while True:
            try:
                pages.append(samples(client.get(found[1]).text))
            except httpx.HTTPError:
                return pages
            time.sleep(0.05)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with serve(FakeOpenAi()) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ended = headless(
            *("--backends", f"a={server.url}", *QUICK, "--metrics-port", str(port)),
            folder=tmp_path,
        )
    assert ended.code == 2
    assert f"--metrics-port: {port} is not valid" in ended.last_error()
    assert run_dirs(tmp_path) == []


@pytest.mark.parametrize("port", ["x", "70000"])
def test_a_port_that_is_no_port(port: str, tmp_path: Path) -> None:
    ended = headless("--metrics-port", port, folder=tmp_path)
    assert ended.code == 2
    assert f"--metrics-port: '{port}' is not valid" in ended.last_error()
