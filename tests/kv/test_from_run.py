"""``kvknee plan --from-run``: what a run measured, and what it does not tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import run
from harness.errors import OptionError
from harness.kv.engine import EngineOptions
from harness.kv.measured import Measured
from harness.kv.plan import plan
from harness.kv.plan_types import Plan, PlanOptions
from tests.analysis.test_movers import CONFIG
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run
from tests.support.run_files import write_run
from tests.support.stored_runs import PAGED_STATIC, stored_run

MIB = 2**20
FACTS: dict[str, Any] = {
    "run": "r",
    "backend": "paged",
    "max_model_len": 2048,
    "pool_bytes": 16 * MIB,
    "num_blocks": 128,
    "block_size": 128,
}


def planned(measured: Measured, max_model_len: int = 2048, **options: Any) -> Plan:
    engine = EngineOptions(device="cpu", max_model_len=max_model_len, block_size=128)
    asked: dict[str, Any] = {"prompt_tokens": 512, "output_tokens": 128, **options}
    return plan(CONFIG, PlanOptions(engine=engine, measured=measured, **asked))


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run(["plan", *map(str, arguments)]) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1
    return found


def test_the_pool_is_the_servers() -> None:
    # 127 blocks, 5 a request
    assert planned(Measured(**FACTS)).safe_concurrency == 25


def test_the_servers_own_blocks_count() -> None:
    found = planned(Measured(**{**FACTS, "num_blocks": 64}))
    assert found.safe_concurrency == 63 // 5
    assert any("64" in text for text in found.warnings)


def test_bytes_per_token_as_measured() -> None:
    facts = {**FACTS, "num_blocks": None, "token_bytes": 2048.0}
    twice = Measured(**facts, token_bytes_low=2040.0, token_bytes_high=2056.0)
    # 8 slots of 2,048 tokens at 1,024 B, 4 at what was measured
    assert planned(twice, layout="contiguous-max").safe_concurrency == 4
    within = Measured(**facts, token_bytes_low=1000.0, token_bytes_high=3000.0)
    assert planned(within, layout="contiguous-max").safe_concurrency == 8


def test_the_overhead_is_the_measured_one() -> None:
    measured = Measured(**FACTS, overhead_bytes=20 * MIB)
    found = planned(measured, vram_bytes=64 * MIB, utilization=1.0, weights_bytes=4 * MIB)
    assert found.pool_bytes == (64 - 4 - 20) * MIB
    assert any("measured: paged of run r" in step for step in found.derivation)
    assert not any("assumption" in text for text in found.warnings)


def test_without_a_run_the_overhead_is_marked_an_assumption() -> None:
    options = PlanOptions(vram_bytes=8 * 2**30, prompt_tokens=512, output_tokens=128)
    assert any("overhead is an assumption" in text for text in plan(CONFIG, options).warnings)


@pytest.mark.parametrize("options", [{}, {"vram_bytes": 2**30, "weights_bytes": MIB}])
def test_e115_no_budget_of_another_max_model_len(options: dict[str, Any]) -> None:
    measured = Measured(**FACTS, overhead_bytes=MIB)
    with pytest.raises(OptionError, match=r"4096 is not valid; expected 2,048"):
        planned(measured, max_model_len=4096, **options)
    # a pool that was named is no extrapolation
    assert planned(measured, max_model_len=4096, kv_memory_bytes=16 * MIB).safe_concurrency == 25


def test_what_was_not_measured_is_asked_for() -> None:
    with pytest.raises(OptionError, match="--overhead beside it"):
        planned(Measured(**FACTS), vram_bytes=2**30, weights_bytes=MIB)
    with pytest.raises(OptionError, match="stated no KV pool"):
        planned(Measured(**{**FACTS, "pool_bytes": None}))


def test_a_stored_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored_run(PAGED_STATIC, tmp_path)
    lengths = ("--prompt-tokens", "512", "--output-tokens", "128")
    found = json.loads(shown(capsys, "--from-run", path, *lengths, "--json"))
    assert found["pool_bytes"] == 16 * MIB
    assert (found["safe_concurrency"], found["steady_concurrency"]) == (25, 25)
    assert found["engine"]["max_model_len"] == 2048
    assert any("bytes per token place, fitted: 1,024.0 B" in line for line in found["measured"])
    static = shown(capsys, "--from-run", path, "--backend", "contiguous", "--layout",
                   "contiguous-max", *lengths)  # fmt: skip
    assert "8 requests at once" in static


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = stored_run(PAGED_STATIC, tmp_path)
    assert "no run directory" in refused(capsys, "--from-run", tmp_path)
    assert "one of paged, contiguous" in refused(capsys, "--from-run", stored, "--backend", "x")
    assert "--from-run beside it" in refused(capsys, "a.json", "--backend", "x")
    assert "or --from-run DIR" in refused(capsys)
    assert "expected 2,048" in refused(capsys, "--from-run", stored, "--max-model-len", "4096")
    bare = write_run(build_run((PAGED,), (4,), (20,)), tmp_path)
    assert "kept no config of paged" in refused(capsys, "--from-run", bare)
    (bare / "records.jsonl").unlink()
    assert "nothing was measured" in refused(capsys, "--from-run", bare)
