"""Reservations and static batches over real connections."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.errors import OptionError
from servers.contiguous.server import summary
from tests.contiguous.serving import (
    fake_service,
    frames,
    metric,
    open_request,
    real_service,
    serving,
    wait_until,
)
from tests.contiguous.support import FakeModel, random_prompt, reference

COMPLETIONS = "/v1/completions"
#: (prompt tokens, output tokens)
SIZES = [(40, 20), (3, 31), (70, 9), (17, 24)]
#: 2,048 tokens of 2,048 B
BUDGET = 2048 * 2048

#: (settings, slots, a line of the summary)
MODES = [
    ({"reserve": "max"}, 4, "4 slots of 512 tokens"),
    ({"reserve": "exact"}, None, "one arena, prompt + max_tokens per request"),
    ({"reserve": "pow2"}, None, "rounded up to a power of two per request"),
    ({"batching": "static", "batch_size": 4}, 4, "batching static: up to 4 requests"),
    ({"batching": "static", "reserve": "exact"}, None, "batching static: up to 8 requests"),
    ({"batching": "static", "cache": "dynamic"}, None, "dynamic: a padded batch"),
]


def body(prompt: list[int], tokens: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }


@pytest.mark.parametrize(("settings", "slots", "line"), MODES)
def test_streams_are_right_in_every_mode(
    model: Any, settings: dict[str, Any], slots: int | None, line: str
) -> None:
    """Four at once, and all that /version, the metrics and the terminal say of the mode."""
    service = real_service(model, kv_budget_bytes=BUDGET, **settings)
    assert line in summary(service, "http://127.0.0.1:1")
    with serving(service) as client, ThreadPoolExecutor(len(SIZES)) as pool:
        prompts = [random_prompt(length, index) for index, (length, _) in enumerate(SIZES)]
        bodies = [body(prompt, n) for prompt, (_, n) in zip(prompts, SIZES, strict=True)]
        streams = list(pool.map(lambda one: frames(client, COMPLETIONS, one), bodies))
        for prompt, (_, tokens), stream in zip(prompts, SIZES, streams, strict=True):
            assert stream.pop() == "[DONE]"
            ids = [token for frame in stream for token in frame["choices"][0]["token_ids"]]
            # one frame a token, also in a batch
            assert len(stream) == tokens
            assert ids == reference(model, prompt, tokens).ids
        version = client.get("/version").json()
        cache = settings.get("cache", "static")
        batching = settings.get("batching", "continuous")
        assert (version["mode"], version["cache"]) == (cache, cache)
        reserve = settings.get("reserve", "max") if cache == "static" else None
        assert (version["reserve"], version["batching"]) == (reserve, batching)
        size = settings.get("batch_size", 8) if batching == "static" else None
        assert version["batch_size"] == size
        assert version["slots"] == slots
        assert version["max_num_seqs"] == (size or 256)
        # the last frame goes out just before its request's memory is let go
        wait_until(lambda: metric(client, "contiguous_requests_running") == 0)
        for name in ("running", "waiting", "waiting_for_kv"):
            assert metric(client, f"contiguous_requests_{name}") == 0
        for name in ("reserved", "used", "padding"):
            assert metric(client, f"contiguous_kv_{name}_bytes") == 0
        arena = batching == "continuous" and reserve in ("exact", "pow2")
        expected = BUDGET if arena else None
        assert metric(client, "contiguous_kv_free_bytes") == expected
        assert metric(client, "contiguous_kv_largest_free_bytes") == expected
        waits = metric(client, "contiguous_requests_waiting_for_region")
        assert waits == (0 if arena else None)


def test_f123_who_waits_for_a_region_shows_with_the_free_bytes_beside() -> None:
    """A [0, 1,400), B [1,400, 2,800), C [2,800, 4,096): A and C end, and D's 2,000 tokens
    wait although 2,696 are free, of 16 B each.

    In chunks of 512 tokens their prompts are read in 8 steps, of at most 3 forwards each; 29
    steps later A has its 30 tokens, and B far from its 100: the 60th forward lies between.
    """
    sizes = [(1370, 30), (1300, 100), (1286, 10), (1900, 100)]
    come, seen = threading.Event(), threading.Event()

    def before(number: int, batch: int) -> None:
        if number in (0, 60):
            (seen if number else come).wait(20)

    with (
        serving(fake_service(FakeModel(before), "exact", slots=1)) as client,
        ThreadPoolExecutor(4) as pool,
    ):

        def number_of_requests() -> float:
            names = ("contiguous_requests_running", "contiguous_requests_waiting")
            return sum(metric(client, name) or 0 for name in names)

        streams = []
        for prompt, tokens in sizes:
            streams.append(pool.submit(frames, client, COMPLETIONS, body([1] * prompt, tokens)))
            wait_until(lambda: number_of_requests() == len(streams))
        come.set()
        wait_until(lambda: metric(client, "contiguous_requests_waiting_for_region") == 1)
        assert metric(client, "contiguous_requests_waiting_for_kv") == 1
        assert metric(client, "contiguous_kv_free_bytes") == 2696 * 16
        assert metric(client, "contiguous_kv_largest_free_bytes") == 1400 * 16
        seen.set()
        for stream, (_, tokens) in zip(streams, sizes, strict=True):
            assert len(stream.result()) == tokens + 1


@pytest.mark.parametrize("kind", ["batch-max", "batch-dynamic"])
def test_f118_an_error_in_a_batch_is_a_frame_of_each_stream(kind: str) -> None:
    """The first forward waits until all three have come; it is a batch of one."""
    come = threading.Event()

    def before(number: int, batch: int) -> None:
        if number == 0:
            come.wait(20)
        if number == 4:
            raise RuntimeError("boom")

    with (
        serving(fake_service(FakeModel(before), kind)) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        first = pool.submit(frames, client, COMPLETIONS, body([1], 1))
        wait_until(lambda: metric(client, "contiguous_requests_running") == 1)
        rest = [pool.submit(frames, client, COMPLETIONS, body([at], 20)) for at in (5, 9)]
        wait_until(lambda: metric(client, "contiguous_requests_waiting") == 2)
        come.set()
        assert len(first.result()) == 2
        for future in rest:
            out = future.result()
            # forwards 1 to 3 gave a token each
            assert len(out) == 5
            assert out[3]["error"]["message"] == "decoding failed: RuntimeError: boom"
            assert out[4] == "[DONE]"
        assert metric(client, "contiguous_requests_total", outcome="error") == 2
        assert metric(client, "contiguous_kv_reserved_bytes") == 0
        assert len(frames(client, COMPLETIONS, body([1], 16))) == 17


def test_f119_a_client_that_leaves_a_batch_of_one_stops_it() -> None:
    allowed = threading.Semaphore(5)
    model = FakeModel(lambda number, batch: allowed.acquire(timeout=20))
    with serving(fake_service(model, "batch-dynamic")) as client:
        sock = open_request(client, COMPLETIONS, body([1], 2000) | {"stream": True})
        wait_until(lambda: model.forwards == 6)
        sock.close()
        wait_until(lambda: client.get("/health").status_code == 200)
        allowed.release(100)
        wait_until(lambda: metric(client, "contiguous_requests_total", outcome="cancelled") == 1)
        assert model.forwards <= 5 + 2
        assert metric(client, "contiguous_kv_reserved_bytes") == 0


def test_a_prompt_that_no_region_holds_is_a_400(model: Any) -> None:
    """100 tokens of 2,048 B: 90 + 11 are one too many."""
    with serving(real_service(model, kv_budget_bytes=100 * 2048, reserve="exact")) as client:
        refused = client.post(COMPLETIONS, json=body([1] * 90, 11))
        assert refused.status_code == 400
        assert "101 tokens x 2048 B" in refused.json()["error"]["message"]
        assert client.post(COMPLETIONS, json=body([1] * 90, 10)).status_code == 200


@pytest.mark.parametrize("reserve", ["exact", "pow2"])
def test_a_budget_below_one_token_is_refused(model: Any, reserve: str) -> None:
    with pytest.raises(OptionError, match="at least one token: 2048 B"):
        real_service(model, kv_budget_bytes=2047, reserve=reserve)


@pytest.mark.parametrize("settings", [{}, {"reserve": "exact"}, {"batching": "static"}])
def test_memory_that_cannot_be_had_is_one_line(model: Any, settings: dict[str, Any]) -> None:
    """2^60 B; the sequences are many enough for the arena not to be cut down."""
    with pytest.raises(OptionError) as refused:
        options = {"max_num_seqs": 2**50, "batch_size": None, **settings}
        if settings.get("batching") == "static":
            options["batch_size"] = 2**50
        real_service(model, kv_budget_bytes=2**60, **options)
    text = str(refused.value)
    assert text.startswith("--kv-budget")
    assert "\n" not in text
