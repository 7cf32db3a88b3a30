"""The contiguous server keeps up with ``model.generate``: ratios within one run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.benchmarks.contiguous_decode import measure, save_tiny, table

#: at least this share of generate's rate, by number of streams
LEAST = {1: 0.9, 8: 0.8}


@pytest.mark.benchmark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_keeps_up_with_generate(tmp_path: Path, dtype: str) -> None:
    before = torch.get_num_threads()
    try:
        rows = measure(save_tiny(tmp_path / "tiny"), dtype=dtype, threads=1, rounds=5)
    finally:
        torch.set_num_threads(before)
    shown = table(rows, dtype=dtype, threads=1)
    print(shown)
    assert len(rows) == 6
    for row in rows:
        assert row.ratio >= LEAST[row.streams], shown
