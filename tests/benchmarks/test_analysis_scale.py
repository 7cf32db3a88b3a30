"""``kvknee report`` takes time and memory in proportion to the requests, and little of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.analysis_scale import LEAST, Measured, differences, measure

#: beyond ``LEAST``: what Python, numpy and the figures take is the same at every size
STEP = 150_000


@pytest.mark.benchmark
@pytest.mark.timeout(600)
def test_time_and_memory_grow_with_the_requests(tmp_path: Path) -> None:
    least, once, twice = (measured(tmp_path, LEAST + steps * STEP) for steps in (0, 1, 2))
    # twice the requests, twice the time beyond the least
    assert (twice.cpu_s - least.cpu_s) / (once.cpu_s - least.cpu_s) < 2.6
    # 2 GiB for a million requests are 2,147 B each
    assert (twice.peak_bytes - least.peak_bytes) / (2 * STEP) < 1000
    # figures are thinned: the page does not grow with the requests
    assert twice.html_bytes < 1.5 * least.html_bytes


def measured(folder: Path, requests: int) -> Measured:
    """Measured and found right, in a folder of its own."""
    own = folder / str(requests)
    own.mkdir()
    found, wrong = measure(requests, own)
    print(found.table())
    assert wrong == []
    return found


def test_the_report_says_what_the_run_was_made_of(tmp_path: Path) -> None:
    found, wrong = measure(LEAST, tmp_path)
    assert wrong == []
    assert found.peak_bytes > 2**20


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
