"""Four real servers that differ in how they reserve: the order of the PagedAttention paper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.rundir import RunDir
from harness.stack.state import fleet_backends
from tests.support.local_stack import ROOT

#: Measured and simulated shares differ by this much at most: requests and steps are few.
NEAR = 0.08


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.timeout(600)
def test_the_order_of_the_paper_on_real_servers(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {**os.environ, "KVKNEE_HOME": str(home), "KVKNEE_METRICS_PORT": "none"}
    done = subprocess.run(
        [
            *(sys.executable, "scenarios/fragmentation.py", "--levels", "64"),
            *("--min-requests", "80", "--min-level-seconds", "15", "--prometheus-url", "none"),
            *("--results-dir", str(tmp_path / "results"), "--only-summary"),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert fleet_backends(home) == ()
    (path,) = (tmp_path / "results").iterdir()
    rows = json.loads((RunDir.open(path).path / "summary.json").read_text())["scenario"]
    found = rows["fragmentation"]
    assert [row["policy"] for row in found] == ["max", "pow2", "exact", "paged"]
    assert all(row["saturated"] >= 5 for row in found)
    shares = [row["share"] for row in found]
    assert shares == sorted(shares)
    for row in found:
        predicted = row["predicted"]
        simulated = predicted["stored_tokens"] / predicted["reserved_tokens"]
        assert row["share"] == pytest.approx(simulated, abs=NEAR), row["policy"]
        # 16 MiB hold 16,384 tokens of the built-in model, 8 slots of 2,048
        assert row["held"] == pytest.approx(predicted["held"], rel=0.25), row["policy"]
    assert found[0]["held"] == pytest.approx(8, abs=0.2)
