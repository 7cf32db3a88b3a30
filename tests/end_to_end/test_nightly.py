"""Real nights of the contiguous server: stored, comparable, and a slower server told apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.nightly.history import History
from harness.nightly.setup import setup_hash
from harness.stack.state import fleet_backends
from servers.contiguous.step_delay import VARIABLE
from tests.support.local_stack import free_port, kvknee

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]

SUITE = """
suite = "tiny"

[[run]]
name = "short"
scenario = "concurrency"
backends = ["contiguous"]
model = "tiny"
levels = [4]
prompt_tokens = 64
output_tokens = 16
repeats = 3
kv_budget = "16MiB"
options = { min-requests = "12", min-level-seconds = "1" }

[gate]
primary = [
    { run = "short", backend = "contiguous", level = 4, metric = "tpot_p50_s" },
    { run = "short", backend = "contiguous", level = 4, metric = "output_tokens_per_s" },
]
"""
DELAY_S = 0.02


def test_two_nights_then_a_slower_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVKNEE_METRICS_PORT", "none")
    home, results = tmp_path / "home", tmp_path / "results"
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE)
    words = ("nightly", str(suite), "--results-dir", str(results))
    first = kvknee(home, *words)
    assert first.returncode == 2, first.stdout + first.stderr
    assert "it seeds the baseline; 4 more are needed" in first.stderr
    # nothing is left of it but its results
    assert fleet_backends(home) == ()
    assert (results / "nightly" / "lock").read_bytes() == b""

    # the second night: a server that somebody started, with half the memory, slower
    port = free_port()
    up = ("up", "--backends", "contiguous", "--contiguous-port", str(port), "--kv-budget", "8MiB")
    monkeypatch.setenv(VARIABLE, f"{1000 * DELAY_S:g}")
    started = kvknee(home, *up)
    try:
        assert started.returncode == 0, started.stderr
        # other settings than the suite's are refused, unless the servers are named
        refused = kvknee(home, *words)
        assert refused.returncode == 3
        assert "kv_budget=8MiB (the suite asks for 16MiB)" in refused.stderr
        second = kvknee(home, *words, "--backends", f"contiguous=http://127.0.0.1:{port}")
    finally:
        kvknee(home, "down")
    assert second.returncode == 2, second.stdout + second.stderr

    with History.open(results / "history.sqlite") as history:
        nights = [run.run_id for run in history.runs()]
        assert len(nights) == 2
        # one setup: half the memory and a slower step are results of the night
        hashes = {setup_hash(history.setups(night)["short/contiguous"]) for night in nights}
        assert len(hashes) == 1
        assert set(history.verdicts(nights[1]).values()) <= {
            *("no comparable baseline", "insufficient samples"),
        }
        tpot = [
            item.value
            for item in history.figures(nights[1])
            if item.metric == "tpot_p50_s" and item.value is not None
        ]
    # every token but the first waits for one rest at least, and no rest is shorter than asked
    assert len(tpot) == 3 and min(tpot) >= DELAY_S
    runs = (results / "nightly" / nights[1] / "runs").glob("*/manifest.json")
    manifests = [json.loads(path.read_bytes()) for path in runs]
    assert {run["backends"][0]["kv_budget_bytes"] for run in manifests} == {8 * 2**20}
