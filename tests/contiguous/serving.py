"""A real uvicorn server on a free port, in a thread of the test process."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from servers.contiguous.admission import Admission
from servers.contiguous.detokenize import DetokenizerFactory
from servers.contiguous.engine import Engine
from servers.contiguous.frontend import Frontend
from servers.contiguous.loading import LoadedModel
from servers.contiguous.mailbox import LoopDelivery
from servers.contiguous.metrics import ServerMetrics
from servers.contiguous.server import bind, make_server
from servers.contiguous.service import Service, build_service
from servers.contiguous.settings import Settings
from tests.contiguous.support import (
    CPU,
    EOS,
    FakeModel,
    byte_tokenizer,
    loaded_model,
    make_cache,
    make_policy,
    make_runner,
)


def real_service(model: Any, max_model_len: int = 512, **settings: Any) -> Service:
    """Around a transformers model."""
    chosen = Settings(model="tiny", served_model_name="tiny", **settings)
    return build_service(loaded_model(model, max_model_len), chosen)


def fake_service(
    model: FakeModel, kind: str = "static", *, slots: int = 8, max_waiting: int = 256
) -> Service:
    """Around a scripted model, with the same parts but no self-check."""
    layout, max_model_len = FakeModel.LAYOUT, 4096
    metrics, delivery = ServerMetrics("fake"), LoopDelivery()
    policy = make_policy(kind, layout, slots, max_model_len)
    engine = Engine(
        make_runner(model, policy, make_cache(kind, layout, slots, max_model_len), layout),
        Admission(policy, max_waiting),
        metrics.requests,
        deliver=delivery,
        clock=time.monotonic,
        prefill_chunk=512,
    )
    info: dict[str, object] = {"version": "0", "mode": kind, "slots": slots}
    metrics.add_gauges(engine.snapshot, info, cuda=False)
    loaded = LoadedModel(
        model, byte_tokenizer(), CPU, frozenset([EOS]), FakeModel.VOCAB, max_model_len
    )
    frontend = Frontend(loaded, "fake", policy, DetokenizerFactory(loaded.tokenizer))
    return Service(Settings("fake", "fake"), frontend, engine, metrics, delivery, info)


@contextmanager
def serving(service: Service) -> Iterator[httpx.Client]:
    """A client with the running server's base URL."""
    sock = bind("127.0.0.1", 0)
    server = make_server(service)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        port = sock.getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait_until(lambda: server.started)
            yield client
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


def wait_until(condition: Any, timeout_s: float = 20.0) -> None:
    """Poll until true; the test fails when it stays false."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def frames(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """All data frames of a stream, decoded; [DONE] stays a string."""
    with client.stream("POST", path, json={"stream": True, **body}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        text = response.read().decode()
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    datas = [event.removeprefix("data: ") for event in events]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


def metric(client: httpx.Client, name: str, **labels: str) -> float | None:
    """One sample of /metrics; None when it is not there."""
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


def open_request(client: httpx.Client, path: str, body: dict[str, Any]) -> socket.socket:
    """A raw connection on which the request has been written and nothing read."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    sock = socket.create_connection((client.base_url.host, client.base_url.port or 80))
    sock.settimeout(20)
    sock.sendall(head.encode() + content)
    return sock
