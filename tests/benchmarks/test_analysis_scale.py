"""``kvknee report`` takes time and memory in proportion to the requests, and little of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.analysis_scale import differences, measure

SMALL, LARGE = 100_000, 200_000


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_time_and_memory_grow_with_the_requests(tmp_path: Path) -> None:
    taken = []
    for requests in (SMALL, LARGE):
        folder = tmp_path / str(requests)
        folder.mkdir()
        measured, wrong = measure(requests, folder)
        print(measured.table())
        assert wrong == []
        taken.append(measured)
    small, large = taken
    assert large.cpu_s / small.cpu_s < 2.6
    # 2 GiB for a million requests are 2,147 B each; what Python, numpy and the figures take
    # is the same at either size
    assert (large.peak_bytes - small.peak_bytes) / (LARGE - SMALL) < 1000
    # figures are thinned: the page does not grow with the requests
    assert large.html_bytes < 1.2 * small.html_bytes


def test_the_report_says_what_the_run_was_made_of(tmp_path: Path) -> None:
    measured, wrong = measure(12_000, tmp_path)
    assert wrong == []
    assert measured.peak_bytes > 2**20


def test_a_wrong_figure_is_seen() -> None:
    names = ("ttft_p50", "ttft_p99", "itl_p99", "tpot_p95")
    percentiles = {"p50": 1.0, "p95": 1.0, "p99": 1.0}
    cell = {
        "backend": "paged",
        "level": 32.0,
        "counts": {"recorded": 10, "ok": 9, "failed": 1},
        "latency": {
            "ttft_s": percentiles, "itl_s": percentiles, "tpot_s": percentiles,
            "coalesced_share": 0.5,
        },
        "throughput": {"output_tokens_per_s": 7.0},
    }  # fmt: skip
    figures = {"ok": 9, "output_tokens_per_s": 7.0, **dict.fromkeys(names, 1.0)}
    truth = {"backend": "paged", "level": 32.0, "figures": figures}
    assert differences({"cells": [cell]}, [truth]) == []
    truth["figures"] = {**figures, "ok": 8}
    assert differences({"cells": [cell]}, [truth]) == ["paged c32 ok: 9, not 8"]
    assert differences({"cells": []}, [truth])[0] == "0 cells of 1"
