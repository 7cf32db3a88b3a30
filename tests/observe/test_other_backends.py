"""SGLang, Text Generation Inference and llama.cpp: pages written after their documentation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.observe import names as n
from harness.observe.aggregate import canonical_values
from harness.observe.backends import backend_kind, detect_kind, kind_of_owner
from harness.observe.collect import backend_series
from harness.observe.exposition import PageReader
from harness.records import Scrape
from harness.rundir import RunDir
from tests.observe.support import backend, fixture, manifest, write_scrapes


def values(name: str) -> dict[str, float]:
    text = fixture(name)
    row = backend_kind(detect_kind(text))
    return canonical_values(row, PageReader(row.sample_names).read(text))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sglang.txt", "sglang"),
        ("sglang-0.4.txt", "sglang"),
        ("tgi.txt", "tgi"),
        ("llamacpp.txt", "llamacpp"),
        ("llamacpp-2025.txt", "llamacpp"),
        # the load's own page is no server's
        ("kvknee.txt", "openai"),
    ],
)
def test_the_page_tells_the_kind_and_has_what_is_required(name: str, kind: str) -> None:
    assert detect_kind(fixture(name)) == kind
    assert set(backend_kind(kind).required) <= values(name).keys()


def test_sglang() -> None:
    # two ranks say the same and count once; priorities are parts of the total
    assert values("sglang.txt") == {
        n.RUNNING: 25,
        n.WAITING: 7,
        # 25 x 640 of 16,384 tokens
        n.KV_USAGE_RATIO: 16000 / 16384,
        n.KV_USAGE_RATIO_MAX: 16000 / 16384,
        n.KV_TOKENS_HELD: 16000,
        n.PREEMPTIONS_TOTAL: 3,
        # 75 x 512, of which 300 came from the device's cache and 84 from the host's
        n.PREFIX_QUERIES_TOTAL: 38400,
        n.PREFIX_HITS_TOTAL: 384,
        n.PROMPT_TOKENS_TOTAL: 38400,
        n.REQUESTS_TOTAL: 75,
        n.QUEUE_SECONDS_SUM: 12.5,
        n.QUEUE_SECONDS_COUNT: 100,
        n.TTFT_SECONDS_SUM: 25,
        n.TTFT_SECONDS_COUNT: 100,
        n.ITL_SECONDS_SUM: 95.25,
        n.ITL_SECONDS_COUNT: 9525,
    }


def test_sglang_before_its_metrics_were_renamed() -> None:
    found = values("sglang-0.4.txt")
    assert (found[n.RUNNING], found[n.WAITING], found[n.KV_USAGE_RATIO]) == (25, 7, 0.28)
    assert found[n.KV_TOKENS_HELD] == 4587
    assert found[n.ITL_SECONDS_SUM] / found[n.ITL_SECONDS_COUNT] == 0.01
    # a rate of the last batch is no counter of hits
    assert not {n.PREFIX_HITS_TOTAL, n.PREEMPTIONS_TOTAL, n.QUEUE_SECONDS_SUM} & found.keys()


def test_sglang_data_parallel_ranks_are_engines_of_their_own() -> None:
    row = backend_kind("sglang")
    text = "".join(
        f'sglang:{name}{{dp_rank="{rank}",tp_rank="{rank}"}} {number}\n'
        for rank, running, usage in ((0, 3, 0.2), (1, 5, 0.6))
        for name, number in (("num_running_reqs", running), ("token_usage", usage))
    )
    found = canonical_values(row, PageReader(row.sample_names).read(text))
    assert found[n.RUNNING] == 3 + 5
    assert found[n.KV_USAGE_RATIO] == pytest.approx((0.2 + 0.6) / 2)
    assert found[n.KV_USAGE_RATIO_MAX] == 0.6


def test_tgi() -> None:
    # neither TTFT nor gaps nor KV blocks, and tokens of ended requests only
    assert values("tgi.txt") == {
        n.RUNNING: 25,
        n.WAITING: 7,
        # 107 x 512
        n.PROMPT_TOKENS_TOTAL: 54784,
        n.REQUESTS_TOTAL: 75,
        n.QUEUE_SECONDS_SUM: 12.5,
        n.QUEUE_SECONDS_COUNT: 75,
    }


def test_llamacpp() -> None:
    now = {n.RUNNING: 4, n.WAITING: 12, n.PROMPT_TOKENS_TOTAL: 38400}
    assert values("llamacpp.txt") == now
    # 4 x 640 of 8,192 tokens
    kv = {
        n.KV_USAGE_RATIO: 2560 / 8192,
        n.KV_USAGE_RATIO_MAX: 2560 / 8192,
        n.KV_TOKENS_HELD: 2560,
    }
    assert values("llamacpp-2025.txt") == now | kv


def test_whom_a_model_belongs_to() -> None:
    assert kind_of_owner("sglang") == "sglang"
    assert kind_of_owner("llamacpp") == "llamacpp"
    assert {kind_of_owner(owner) for owner in ("vllm", "organization-owner", None)} == {"openai"}


@pytest.mark.parametrize(
    ("kind", "flag"), [("llamacpp", "--metrics"), ("sglang", "--enable-metrics")]
)
def test_an_absent_page_names_the_flag(tmp_path: Path, kind: str, flag: str) -> None:
    run = RunDir.create(tmp_path, "r")
    info = backend("mine", kind)
    write_scrapes(run, "mine", [Scrape(t_s=0.0, took_s=0.0, status=501, error="HTTP 501")])
    series = backend_series(run, info, manifest(info))
    assert not series.available
    assert any(flag in text for text in series.failures)
    assert series.values == {}


def test_a_broken_page_is_no_reason_to_name_the_flag(tmp_path: Path) -> None:
    """It is there, so the flag was given; the line that could not be read is named."""
    run = RunDir.create(tmp_path, "r")
    info = backend("mine", "sglang")
    page = 'sglang:num_running_reqs{model_name="m"} 1.0\nsglang:num_queue_reqs{model_na'
    write_scrapes(run, "mine", [Scrape(t_s=0.0, took_s=0.0, status=200, text=page)])
    series = backend_series(run, info, manifest(info))
    assert series.values == {}
    (reason,) = series.failures
    assert reason.startswith("malformed line 'sglang:num_queue_reqs")


def test_what_a_page_lacks_is_absent_in_its_series(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "r")
    info = backend("mine", "llamacpp")
    write_scrapes(run, "mine", [fixture("llamacpp.txt")] * 2)
    series = backend_series(run, info, manifest(info))
    assert series.missing == ()
    assert series.failures == ()
    assert series.get(n.KV_USAGE_RATIO) is None
    running = series.get(n.RUNNING)
    assert running is not None
    assert np.array_equal(running.v, [4, 4])
