"""What the tests of this folder share: run directories and a metrics page that obeys."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness.manifest import BackendInfo, Manifest
from harness.records import SCHEMA_VERSION, Scrape
from harness.rundir import GzipJournal, RunDir
from harness.workload import Slo, Workload

FIXTURES = Path(__file__).parents[1] / "fixtures" / "metrics"
IDLE = "vllm-0.32.0-idle.txt"
LOAD_A = "vllm-0.32.0-load-a.txt"
LOAD_B = "vllm-0.32.0-load-b.txt"
CONTIGUOUS = "contiguous-static.txt"
DYNAMIC = "contiguous-dynamic.txt"
DCGM = "dcgm-exporter.txt"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


def backend(name: str = "paged", kind: str = "vllm", **fields: object) -> BackendInfo:
    known: dict[str, object] = {
        "name": name,
        "url": "http://127.0.0.1:1",
        "kind": kind,
        "mode": "paged",
        "model": "tiny",
    }
    return BackendInfo(**(known | fields))  # type: ignore[arg-type]


def manifest(
    *backends: BackendInfo,
    prometheus_url: str | None = None,
    t0_s: float = 0.0,
    t0_wall_s: float = 1000.0,
    t_end_s: float | None = 100.0,
) -> Manifest:
    workload = Workload(
        scenario="concurrency",
        endpoint="/v1/completions",
        prompt_tokens=512,
        output_tokens=128,
        levels=(1.0,),
        min_requests=(1,),
        min_level_s=1.0,
        max_level_s=10.0,
        request_timeout_s=10.0,
        idle_timeout_s=10.0,
    )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run_id="r",
        kvknee_version="0",
        status="complete",
        t0_s=t0_s,
        t0_wall_s=t0_wall_s,
        t_end_s=t_end_s,
        workload=workload,
        slo=Slo(),
        max_failure_rate=0.0,
        backends=backends or (backend(),),
        fingerprint={},
        environment={},
        scrape_interval_s=1.0,
        prometheus_url=prometheus_url,
    )


def write_scrapes(run: RunDir, target: str, items: Sequence[str | Scrape]) -> None:
    """One scrape a second from t = 0; a string is a good page."""
    journal = GzipJournal(run.scrape_path(target))
    for t_s, item in enumerate(items):
        if isinstance(item, str):
            item = Scrape(t_s=float(t_s), took_s=0.01, status=200, text=item)
        journal.append(item)
    journal.close()


def until(condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
    """Poll a condition until it holds; fails the test when it does not in time."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.02)


class MetricsServer:
    """A metrics page that is whatever the test sets; counts who asked."""

    def __init__(self) -> None:
        self.status = 200
        self.text = ""
        #: while cleared, answers are held back
        self.answering = threading.Event()
        self.answering.set()
        #: user agent up to its slash -> requests answered
        self.asked: Counter[str] = Counter()
        self.authorizations: set[str | None] = set()
        self.encodings: set[str | None] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port: int = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/metrics"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.authorizations.add(request.headers["Authorization"])
        self.encodings.add(request.headers["Accept-Encoding"])
        self.answering.wait(30)
        status, body = self.status, self.text.encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", "text/plain; version=0.0.4")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
        except OSError:
            # the client gave up on a page that was held back
            request.close_connection = True
            return
        self.asked[(request.headers["User-Agent"] or "").partition("/")[0]] += 1

    def close(self) -> None:
        self.answering.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def metrics_server() -> Iterator[MetricsServer]:
    server = MetricsServer()
    try:
        yield server
    finally:
        server.close()
