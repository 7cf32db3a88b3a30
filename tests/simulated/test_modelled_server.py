"""The modelled server as its clients see it."""

from __future__ import annotations

import itertools

import httpx
import pytest

from harness.cli import run
from harness.load.server_facts import ServerProbe
from harness.load.settings import BackendAddress
from harness.observe import names
from harness.observe.backends import backend_kind
from harness.observe.exposition import PageReader
from tests.simulated.support import ask, running, truth

QUICK = ("--mode", "modelled", "--step-base", "3ms", "--max-model-len", "256")


@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_the_harness_takes_it_for_the_server_it_stands_for(layout: str) -> None:
    options = ("--layout", layout, "--num-blocks", "100", "--kv-budget", "1MiB")
    with running(*QUICK, *options) as url:
        (record,) = ask(url, 9)
        with ServerProbe(BackendAddress("sim", url), None) as probe:
            facts = probe.describe(None)
        page = httpx.get(f"{url}/metrics").text
    assert (record.outcome, record.output_tokens, record.token_source) == ("ok", 9, "token_ids")
    info = facts.info
    assert (info.kind, info.mode) == (
        ("vllm", "paged") if layout == "paged" else ("contiguous", "static")
    )
    if layout == "paged":
        # 100 blocks x 16 tokens x 1,024 B
        assert (info.num_blocks, info.block_size, info.kv_budget_bytes) == (100, 16, 1_638_400)
    else:
        assert (info.kv_budget_bytes, info.kv_bytes_per_token) == (2**20, 1024)
    row = backend_kind(info.kind)
    found = PageReader(tuple(row.sample_names)).read(page)
    for canonical in row.required:
        metric = row.metric(canonical)
        assert metric is not None
        assert any(name in found for name in metric.names), canonical

    def value(canonical: str) -> float:
        metric = row.metric(canonical)
        assert metric is not None
        return sum(sample.value for name in metric.names for sample in found.get(name, ()))

    assert value(names.GENERATION_TOKENS_TOTAL) == 9
    assert value(names.PROMPT_TOKENS_TOTAL) == 4
    assert value(names.REQUESTS_TOTAL) == 1
    assert (value(names.TTFT_SECONDS_COUNT), value(names.ITL_SECONDS_COUNT)) == (1, 8)
    assert (value(names.RUNNING), value(names.WAITING)) == (0, 0)


def test_tokens_come_at_the_ends_of_the_model_s_steps() -> None:
    """A step of one request: 3 ms + 1 ms; the prompt of 4 tokens at 1,000/s takes 4 ms more."""
    options = ("--step-per-running", "1ms", "--prefill-rate", "1000")
    with running(*QUICK, *options) as url:
        ask(url, 6)
        (line,) = truth(url)
    due = line["t_due_s"]
    assert [b - a for a, b in itertools.pairwise(due)] == pytest.approx([0.004] * 5)
    assert due[0] - line["t_received_s"] >= 0.008
    assert all(at >= when - 1e-6 for at, when in zip(line["token_s"], due, strict=True))


def test_a_client_that_leaves_frees_its_blocks() -> None:
    with running(*QUICK) as url:
        body = {"prompt": "hello", "max_tokens": 200, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
            next(answer.iter_bytes())
        ask(url, 2)
        page = httpx.get(f"{url}/metrics").text
        outcomes = {line["outcome"] for line in truth(url)}
    assert outcomes == {"disconnected", "ok"}
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0' in page
    assert 'finished_reason="abort",model_name="m"} 1.0' in page


def test_a_request_that_could_never_run_is_refused() -> None:
    with running(*QUICK, "--num-blocks", "3") as url:
        body = {"prompt": "x" * 30, "max_tokens": 10}
        answer = httpx.post(f"{url}/v1/completions", json=body)
    # 39 tokens in blocks of 16, of which one is the null block
    assert answer.status_code == 400
    assert "needs 3 blocks, the pool has 2" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step-base", "0"], "--step-base: '0' is not valid; expected a time above 0"),
        (["--step-base", "exp:1"], "--step-base: 'exp:1' is not valid; expected one number"),
        (["--layout", "contiguous", "--kv-budget", "1MB"], "--kv-budget: '1MB' is not valid"),
        (["--kv-budget", "1G"], "G could be either"),
        (["--num-blocks", "1"], "'--num-blocks': 1 is not in the range"),
        (["--layout", "ring"], "'--layout': 'ring' is not"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "simulated", "--mode", "modelled", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
