from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from harness.manifest import Manifest
from harness.observe import names as n
from harness.observe.collect import all_series, backend_series
from harness.observe.prometheus import (
    CHUNK_S,
    PrometheusServer,
    ScrapeTarget,
    fetch_run,
    find,
    probe,
)
from harness.observe.prometheus_api import PrometheusFaultError, quoted, without_credentials
from harness.observe.stored import read_stored
from harness.rundir import RunDir
from tests.observe.prometheus_stub import OURS, URL, ok, serving, target
from tests.observe.support import DCGM, IDLE, backend, fixture, manifest, write_scrapes

SERVER = PrometheusServer(URL, "2.42.0", {"paged": ScrapeTarget("llm", "127.0.0.1:8000")})

Answer = Callable[[httpx.Request], httpx.Response]


def reason(transport: httpx.BaseTransport, url: str = URL) -> str:
    assert find(url, OURS, transport=transport) is None
    with pytest.raises(PrometheusFaultError) as caught:
        probe(url, OURS, transport=transport)
    return str(caught.value)


def test_found_when_it_scrapes_all_of_ours() -> None:
    found = find(URL, OURS, transport=serving(target("http://localhost:8000/metrics")))
    assert found == PrometheusServer(
        URL, "2.42.0", {"paged": ScrapeTarget("llm", "localhost:8000")}
    )


def test_a_server_that_only_speaks_the_api_has_no_version() -> None:
    found = find(URL, OURS, transport=serving(target(OURS["paged"]), version=False))
    assert found is not None
    assert found.version is None


@pytest.mark.parametrize(
    "theirs",
    [
        [],
        [target("http://127.0.0.1:8001/metrics")],
        [target("http://10.0.0.7:8000/metrics")],
        [target("http://127.0.0.1:8000/metrics", health="down")],
        [target("http://paged:8001/metrics", backend="paged")],
        [target("http://other:8000/metrics", backend="other")],
    ],
    ids=["none", "other port", "other host", "down", "label, other port", "other label"],
)
def test_not_ours(theirs: list[dict[str, Any]]) -> None:
    assert reason(serving(*theirs)) == (
        "Prometheus at http://127.0.0.1:9999 does not scrape paged (http://127.0.0.1:8000/metrics) "
        "or sees it down"
    )


def test_behind_a_container_network_the_label_tells() -> None:
    found = find(URL, OURS, transport=serving(target("http://paged:8000/metrics", backend="paged")))
    assert found is not None
    assert found.targets == {"paged": ScrapeTarget("llm", "paged:8000")}


def test_two_jobs_that_scrape_one_page_count_once() -> None:
    page = "http://127.0.0.1:8000/metrics"
    found = find(URL, OURS, transport=serving(target(page, job="z"), target(page, job="a")))
    assert found is not None
    assert found.targets["paged"].job == "a"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (httpx.Response(200, text="<html>hello</html>"), "is no Prometheus server (HTTP 200"),
        (httpx.Response(404, text="not found"), "is no Prometheus server (HTTP 404"),
        (httpx.Response(200, json={"object": "list"}), "is no Prometheus server (HTTP 200"),
        (httpx.Response(200, content=b"\xff\xfe"), "is no Prometheus server (HTTP 200"),
        (httpx.Response(401, text="no"), "refuses access (HTTP 401)"),
        (httpx.Response(403, text="no"), "refuses access (HTTP 403)"),
        (
            httpx.Response(503, json={"status": "error", "error": "starting up"}),
            "Prometheus at http://127.0.0.1:9999: starting up",
        ),
        (ok({}), "does not scrape paged"),
        (ok(None), "does not scrape paged"),
    ],
)
def test_what_answers_is_no_use(answer: httpx.Response, expected: str) -> None:
    assert expected in reason(httpx.MockTransport(lambda _: answer))


@pytest.mark.parametrize(
    "error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError]
)
def test_no_answer_and_no_credentials_in_the_words(error: type[httpx.HTTPError]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error(f"failed for {request.url}")

    said = reason(httpx.MockTransport(fail), "http://user:hunter2@127.0.0.1:9999")
    assert said == f"Prometheus at {URL} does not answer ({error.__name__})"


def test_credentials_of_the_url_are_sent_and_not_shown() -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return ok({"activeTargets": [target(OURS["paged"])]})

    found = find("http://user:pw@127.0.0.1:9999", OURS, transport=httpx.MockTransport(answer))
    assert found is not None
    assert found.public_url == URL
    # base64 of user:pw
    assert set(seen) == {"Basic dXNlcjpwdw=="}


def test_small_helpers() -> None:
    assert without_credentials("https://u:p@h:1/x") == "https://h:1/x"
    assert without_credentials(URL) == URL
    assert quoted('a"b\\c') == '"a\\"b\\\\c"'


class Api:
    """A Prometheus that has one sample a second from wall time 1000 on."""

    def __init__(self, end_s: float = 1e9, skew_s: float = 0.0) -> None:
        self.end_s = end_s
        self.skew_s = skew_s
        self.queries: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        query = request.url.params["query"]
        if query == "time()":
            return ok({"resultType": "scalar", "result": [1000 + self.skew_s, "0"]})
        self.queries.append(query)
        end_s = float(request.url.params["time"])
        length_ms = re.search(r"\[(\d+)ms\]$", query)
        assert length_ms is not None
        first = end_s - int(length_ms[1]) / 1000
        times = [t for t in range(int(first), int(end_s) + 1) if first <= t <= end_s]
        times = [t for t in times if t <= self.end_s]
        base = {"job": "llm", "instance": "127.0.0.1:8000", "engine": "0"}
        return ok(
            {
                "resultType": "matrix",
                "result": [
                    {
                        "metric": base | {"__name__": "vllm:num_requests_running"},
                        "values": [[t, str(t - 1000)] for t in times],
                    },
                    {
                        "metric": base | {"__name__": "vllm:num_requests_waiting"},
                        "values": [[t, "NaN" if t % 2 else "1"] for t in times],
                    },
                    {
                        "metric": {"__name__": "up", "job": "llm"},
                        "values": [[t, "0" if t == 1003 else "1"] for t in times],
                    },
                ],
            }
        )


def fetch(run: RunDir, known: Manifest, answer: Answer, server: PrometheusServer = SERVER):  # type: ignore[no-untyped-def]
    return fetch_run(
        run,
        known,
        server,
        wall_clock=lambda: 1000.0,
        transport=httpx.MockTransport(answer),
    )


def test_samples_keep_their_own_times_on_the_monotonic_clock(run: RunDir) -> None:
    # anchor: monotonic 50 s is wall 1000 s; the run lasts 5 s
    known = manifest(prometheus_url=URL, t0_s=50.0, t_end_s=55.0)
    assert fetch(run, known, Api()) == {}
    found = backend_series(run, backend(), known)
    assert found.source == "prometheus"
    assert found.values[n.RUNNING].t_s.tolist() == [50, 51, 52, 53, 54, 55]
    assert found.values[n.RUNNING].v.tolist() == [0, 1, 2, 3, 4, 5]
    # every second one was NaN
    assert found.values[n.WAITING].t_s.tolist() == [50, 52, 54]
    # up was 0 at wall 1003 s
    assert found.failed_t_s.tolist() == [53.0]
    assert found.failures == ("Prometheus could not scrape it (up = 0)",)


def test_a_run_without_an_end_lasts_until_now(run: RunDir) -> None:
    known = manifest(prometheus_url=URL, t0_wall_s=990.0, t_end_s=None)
    fetch(run, known, Api())
    # from wall 990 to the clock's 1000, t0 = 0
    assert backend_series(run, backend(), known).values[n.RUNNING].t_s.tolist() == [
        float(t) for t in range(11)
    ]


def test_a_long_run_is_asked_for_in_chunks_and_no_sample_counts_twice(run: RunDir) -> None:
    api = Api()
    known = manifest(prometheus_url=URL, t_end_s=2.5 * CHUNK_S)
    fetch(run, known, api)
    # 1800 + 1800 + 900 s, each 1 ms wider at both ends
    assert [re.findall(r"\[(\d+)ms\]", query) for query in api.queries] == [
        ["1800002"],
        ["1800002"],
        ["900002"],
    ]
    times = backend_series(run, backend(), known).values[n.RUNNING].t_s
    assert times.tolist() == [float(t) for t in range(4501)]


def test_another_machines_clock_is_taken_off(run: RunDir) -> None:
    # Prometheus is 7 s ahead: what it read at its 1007 s was our 1000 s
    known = manifest(prometheus_url=URL, t_end_s=3.0)
    fetch(run, known, Api(skew_s=7.0))
    stored = read_stored(run)
    assert stored is not None
    assert stored.clock_skew_s == 7.0
    running = backend_series(run, backend(), known).values[n.RUNNING]
    assert running.t_s.tolist() == [0, 1, 2, 3]
    assert running.v.tolist() == [7, 8, 9, 10]


def test_a_difference_too_small_to_measure_is_none(run: RunDir) -> None:
    fetch(run, manifest(prometheus_url=URL, t_end_s=3.0), Api(skew_s=0.2))
    stored = read_stored(run)
    assert stored is not None
    assert stored.clock_skew_s == 0.0


def test_only_needed_metrics_of_our_target_are_asked_for(run: RunDir) -> None:
    api = Api()
    fetch(run, manifest(prometheus_url=URL, t_end_s=1.0), api)
    (query,) = api.queries
    assert 'job="llm",instance="127.0.0.1:8000"' in query
    for name in ("up", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"):
        assert re.search(rf'[|"]{name}[|"]', query)
    assert "bucket" not in query


def test_dcgm_may_come_from_prometheus(run: RunDir) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params["query"]
        if query == "time()":
            return ok({"result": [1000, "0"]})
        metric = {"__name__": "DCGM_FI_DEV_FB_USED", "UUID": "GPU-a"}
        found = [{"metric": metric, "values": [[1001, "7"]]}] if "DCGM" in query else []
        return ok({"resultType": "matrix", "result": found})

    server = PrometheusServer(URL, None, {"dcgm": ScrapeTarget("gpu", "127.0.0.1:9400")})
    known = manifest(backend(gpu_uuids=("GPU-a",)), prometheus_url=URL)
    assert fetch(run, known, answer, server) == {}
    series = all_series(run, known)["paged"].values[n.DEVICE_USED_BYTES]
    assert (series.t_s.tolist(), series.v.tolist()) == ([1.0], [7 * 2**20])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (httpx.Response(401), "refuses access (HTTP 401)"),
        (
            httpx.Response(422, json={"status": "error", "error": "too many samples"}),
            "too many samples",
        ),
        (httpx.Response(500, text="boom"), "is no Prometheus server (HTTP 500"),
        (ok({"resultType": "vector", "result": []}), "Prometheus sent vector, not samples"),
        (ok({"resultType": "matrix", "result": [{"metric": {}}]}), "is malformed"),
        (ok({"resultType": "matrix", "result": [{"metric": {}, "values": [[1]]}]}), "is malformed"),
        (ok([]), "is malformed"),
    ],
)
def test_a_failed_query_falls_back_to_the_scraper_and_says_why(
    run: RunDir, answer: httpx.Response, expected: str
) -> None:
    def api(request: httpx.Request) -> httpx.Response:
        clock = request.url.params["query"] == "time()"
        return ok({"result": [1000, "0"]}) if clock else answer

    write_scrapes(run, "paged", [fixture(IDLE)])
    known = manifest(prometheus_url=URL)
    faults = fetch(run, known, api)
    assert expected in faults["paged"]
    found = backend_series(run, backend(), known)
    assert (found.source, found.n_scrapes) == ("scraper", 1)
    assert found.failures == (
        f"Prometheus: {faults['paged']}; the embedded scraper's data is used",
    )


def test_a_server_that_is_gone_at_the_end_falls_back(run: RunDir) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    write_scrapes(run, "paged", [fixture(IDLE)])
    write_scrapes(run, "dcgm", [fixture(DCGM)])
    known = manifest(prometheus_url=URL)
    assert list(fetch(run, known, fail)) == ["paged"]
    assert backend_series(run, backend(), known).source == "scraper"


def test_a_server_without_a_clock_is_a_fault(run: RunDir) -> None:
    faults = fetch(run, manifest(prometheus_url=URL), lambda _: ok({"result": []}))
    assert faults == {"paged": "Prometheus does not tell its time"}


@pytest.mark.parametrize("content", [None, b"{ torn"])
def test_without_its_file_the_scraper_stands_in(run: RunDir, content: bytes | None) -> None:
    if content is not None:
        run.write_file("prometheus.json", content)
    write_scrapes(run, "paged", [fixture(IDLE)])
    found = backend_series(run, backend(), manifest(prometheus_url=URL))
    assert found.source == "scraper"
    assert found.failures == (
        "Prometheus: prometheus.json is missing or damaged; the embedded scraper's data is used",
    )


def test_samples_that_do_not_cover_the_target_fall_back(run: RunDir) -> None:
    write_scrapes(run, "paged", [fixture(IDLE)])
    known = manifest(prometheus_url=URL, t_end_s=1.0)
    assert fetch(run, known, Api(end_s=0)) == {}
    found = backend_series(run, backend(), known)
    assert (found.source, found.failures) == (
        "scraper",
        ("Prometheus: no samples; the embedded scraper's data is used",),
    )


def test_the_file_has_no_credentials(run: RunDir) -> None:
    server = PrometheusServer("http://user:hunter2@127.0.0.1:9999", None, SERVER.targets)
    fetch(run, manifest(prometheus_url=URL, t_end_s=1.0), Api(), server)
    text = (run.path / "prometheus.json").read_text()
    assert "hunter2" not in text
    assert json.loads(text)["url"] == URL
