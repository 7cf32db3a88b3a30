"""What clients see when things go wrong, over real connections with a scripted model."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contiguous.serving import (
    fake_service,
    frames,
    metric,
    open_request,
    serving,
    wait_until,
)
from tests.contiguous.support import FakeModel

COMPLETIONS = "/v1/completions"
KINDS = pytest.mark.parametrize("kind", ["static", "dynamic"])


def body(**options: Any) -> dict[str, Any]:
    return {"prompt": [1], "temperature": 0, "ignore_eos": True, "max_tokens": 16, **options}


@KINDS
def test_f118_an_error_after_three_tokens_is_a_frame_of_the_stream(kind: str) -> None:
    def before(number: int, batch: int) -> None:
        if number == 3:
            raise RuntimeError("boom")

    with serving(fake_service(FakeModel(before), kind)) as client:
        out = frames(client, COMPLETIONS, body())
        assert len(out) == 5
        assert [frame["choices"][0]["text"] for frame in out[:3]] == ["#", "$", "%"]
        assert out[3]["error"]["type"] == "server_error"
        assert out[3]["error"]["message"] == "decoding failed: RuntimeError: boom"
        assert out[4] == "[DONE]"
        assert metric(client, "contiguous_requests_running") == 0
        assert metric(client, "contiguous_kv_used_bytes") == 0
        assert metric(client, "contiguous_requests_total", outcome="error") == 1
        assert len(frames(client, COMPLETIONS, body())) == 17


@pytest.mark.parametrize("stream", [True, False])
def test_f118_an_error_before_the_first_token_is_a_500(stream: bool) -> None:
    def before(number: int, batch: int) -> None:
        if number == 0:
            raise RuntimeError("boom")

    with serving(fake_service(FakeModel(before))) as client:
        response = client.post(COMPLETIONS, json=body(stream=stream))
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "prefilling failed: RuntimeError: boom"
        assert client.post(COMPLETIONS, json=body(stream=stream)).status_code == 200


@KINDS
@pytest.mark.parametrize("stream", [True, False])
def test_f119_a_client_that_leaves_stops_its_generation(kind: str, stream: bool) -> None:
    """Of 2,000 steps; every forward waits for leave to go on, so steps can be counted."""
    allowed = threading.Semaphore(5)
    model = FakeModel(lambda number, batch: allowed.acquire(timeout=20))
    with serving(fake_service(model, kind)) as client:
        sock = open_request(client, COMPLETIONS, body(max_tokens=2000, stream=stream))
        wait_until(lambda: model.forwards == 6)
        sock.close()
        # the sixth forward is still waiting; the server has seen the client go when the
        # next answer comes, since both are events of one loop
        wait_until(lambda: client.get("/health").status_code == 200)
        allowed.release(100)
        wait_until(lambda: metric(client, "contiguous_requests_total", outcome="cancelled") == 1)
        assert model.forwards <= 5 + 2
        assert metric(client, "contiguous_requests_running") == 0
        assert metric(client, "contiguous_kv_reserved_bytes") == 0
        assert len(frames(client, COMPLETIONS, body(max_tokens=3))) == 4


def test_a_waiting_client_that_leaves_is_taken_out_of_the_queue() -> None:
    release = threading.Event()
    model = FakeModel(lambda number, batch: release.wait(20))
    with serving(fake_service(model, slots=1)) as client:
        running = open_request(client, COMPLETIONS, body())
        wait_until(lambda: metric(client, "contiguous_requests_running") == 1)
        waiting = open_request(client, COMPLETIONS, body())
        wait_until(lambda: metric(client, "contiguous_requests_waiting") == 1)
        assert metric(client, "contiguous_requests_waiting_for_kv") == 1
        waiting.close()
        wait_until(lambda: metric(client, "contiguous_requests_waiting") == 0)
        release.set()
        assert running.recv(100).startswith(b"HTTP/1.1 200")
        running.close()


def test_f121_health_answers_while_the_model_computes() -> None:
    """Two requests, and a forward that does not end before /health has answered five times.

    A loop that waits for the model never answers: the forward gives up first, and says so.
    """
    computing, answered = threading.Event(), threading.Event()
    waited: list[bool] = []

    def before(number: int, batch: int) -> None:
        computing.set()
        waited.append(answered.wait(20))

    model = FakeModel(before)
    with serving(fake_service(model)) as client, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.post, COMPLETIONS, json=body(max_tokens=2)) for _ in range(2)]
        assert computing.wait(20)
        for _ in range(5):
            assert client.get("/health").status_code == 200
        # all five answers came inside one and the same forward
        assert (model.forwards, waited) == (1, [])
        answered.set()
        assert [future.result().status_code for future in asked] == [200, 200]
    assert all(waited)


def test_f127_past_the_bound_the_answer_is_503_with_retry_after() -> None:
    """One slot, one may wait: the third is refused, and the counter says so."""
    release = threading.Event()
    model = FakeModel(lambda number, batch: release.wait(20))
    with serving(fake_service(model, slots=1, max_waiting=1)) as client:
        socks = [open_request(client, COMPLETIONS, body())]
        wait_until(lambda: metric(client, "contiguous_requests_running") == 1)
        socks.append(open_request(client, COMPLETIONS, body()))
        wait_until(lambda: metric(client, "contiguous_requests_waiting") == 1)
        refused = client.post(COMPLETIONS, json=body())
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        assert metric(client, "contiguous_requests_total", outcome="rejected") == 1
        release.set()
        for sock in socks:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            sock.close()


def test_an_unexpected_error_in_a_route_is_a_500_without_details(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = fake_service(FakeModel())
    monkeypatch.setattr(service.engine, "submit", lambda sequence: 1 / 0)
    with serving(service) as client:
        response = client.post(COMPLETIONS, json=body())
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "internal error: ZeroDivisionError"


def test_every_token_is_sent_when_it_exists() -> None:
    """Between two forwards that wait for leave, exactly one more frame arrives."""
    allowed = threading.Semaphore(0)
    model = FakeModel(lambda number, batch: allowed.acquire(timeout=20))
    with serving(fake_service(model)) as client:
        sock = open_request(client, COMPLETIONS, body(stream=True, max_tokens=5))
        received = b""
        for count in range(1, 6):
            allowed.release()
            while received.count(b"data: {") < count:
                received += sock.recv(65536)
            assert received.count(b"data: {") == count
        while b"data: [DONE]\n\n" not in received:
            received += sock.recv(65536)
        sock.close()


def test_stopping_the_server_ends_streams_with_an_error_frame() -> None:
    started = threading.Event()

    def before(number: int, batch: int) -> None:
        started.set()
        time.sleep(0.01)

    model = FakeModel(before)
    service = fake_service(model)
    with serving(service) as client, ThreadPoolExecutor(1) as pool:
        future = pool.submit(frames, client, COMPLETIONS, body(max_tokens=4000))
        assert started.wait(20)
        wait_until(lambda: model.forwards > 3)
        service.engine.request_stop()
        out = future.result(20)
        assert out[-2]["error"]["message"] == "the server is shutting down"
        assert out[-1] == "[DONE]"
        refused = client.post(COMPLETIONS, json=body())
        assert refused.status_code == 503
        wait_until(lambda: client.get("/health").status_code == 503)
