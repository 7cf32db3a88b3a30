"""A server behind a container network, known by when it started."""

from __future__ import annotations

import httpx
import pytest

from harness.observe.birth import BIRTH_NAMES
from harness.observe.prometheus import ScrapeTarget, find
from tests.observe.prometheus_stub import OURS, URL, ok, serving, target


def born(name: str, here: float, there: float | None) -> httpx.MockTransport:
    """Our page states one start, the target ``paged`` in Prometheus another (or none)."""
    targets = serving(target("http://paged:8000/metrics", backend="paged"))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            assert request.url.port == 9000
            return httpx.Response(200, text=f"# TYPE x gauge\nx 1\n{name} {here!r}\n")
        if request.url.path.endswith("/query"):
            asked = request.url.params["query"]
            found = there is not None and asked == f'{name}{{job="llm",instance="paged:8000"}}'
            sample = {"metric": {}, "value": [1.0, f"{there!r}"]}
            return ok({"resultType": "vector", "result": [sample] if found else []})
        return targets.handle_request(request)

    return httpx.MockTransport(answer)


@pytest.mark.parametrize("name", BIRTH_NAMES)
def test_another_published_port_is_known_by_when_the_server_started(name: str) -> None:
    """PAGED_PORT=9000: here the server is at 9000, in its own network at 8000."""
    ours = {"paged": "http://127.0.0.1:9000/metrics"}
    started = 1.79597209753e9
    found = find(URL, ours, transport=born(name, started, started))
    assert found is not None
    assert found.targets == {"paged": ScrapeTarget("llm", "paged:8000")}
    # another server of that name, started a second later; and nobody says when
    assert find(URL, ours, transport=born(name, started, started + 1)) is None
    assert find(URL, ours, transport=born(name, started, None)) is None


def test_the_same_label_and_port_of_another_process_is_not_ours() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text="process_start_time_seconds 1000.0\n")
        if request.url.path.endswith("/query"):
            return ok({"result": [{"metric": {}, "value": [1.0, "2000.0"]}]})
        return serving(target("http://paged:8000/metrics", backend="paged")).handle_request(request)

    assert find(URL, OURS, transport=httpx.MockTransport(answer)) is None


@pytest.mark.parametrize(
    "page",
    [
        httpx.Response(500, text="process_start_time_seconds 1000.0"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, text="process_start_time_seconds oops"),
        # two processes, two births
        httpx.Response(
            200,
            text='process_start_time_seconds{a="1"} 1.0\nprocess_start_time_seconds{a="2"} 2.0\n',
        ),
        httpx.Response(200, content=b"x" * (9 * 2**20)),
    ],
    ids=["error", "no page", "malformed", "two", "endless"],
)
def test_a_page_that_does_not_say_when_it_started(page: httpx.Response) -> None:
    """Then the port decides, as it always did."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return page
        return serving(target("http://paged:8000/metrics", backend="paged")).handle_request(request)

    assert find(URL, OURS, transport=httpx.MockTransport(answer)) is not None
