"""The scenario against both real servers: what it finds must be what arithmetic says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.rundir import RunDir
from tests.support.local_stack import (
    LocalStack,
    kvknee,
    local_stack,
    newest_run,
    run_scenario,
)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

LEVELS = ("--levels", "1,4,16,32", "--min-requests", "3,10,40,64")


def summary_of(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return loaded


@pytest.fixture(scope="session")
def finished_run(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    done = run_scenario(stack, results, *LEVELS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return newest_run(results)


def test_all_levels_of_both_backends_complete_without_a_failure(finished_run: Path) -> None:
    cells = summary_of(finished_run)["cells"]
    assert {(cell["backend"], cell["level"]) for cell in cells} == {
        (backend, level) for backend in ("paged", "contiguous") for level in (1, 4, 16, 32)
    }
    for cell in cells:
        assert cell["failed"] == 0
        assert cell["completed"] >= {1: 3, 4: 10, 16: 40, 32: 64}[int(cell["level"])]
        assert cell["window"]["reason"] == "complete"


@pytest.mark.parametrize(
    ("backend", "predicted", "last_good", "first_bad"),
    [
        # 16 MiB / (128 tokens x 1,024 B) = 128 blocks, 127 usable; 640 tokens need 5: 127 // 5
        ("paged", 25, 16, 32),
        # 16 MiB / (2,048 tokens x 1,024 B) = 8 slots
        ("contiguous", 8, 4, 16),
    ],
)
def test_the_memory_knee_is_where_the_arithmetic_says(
    finished_run: Path, backend: str, predicted: int, last_good: int, first_bad: int
) -> None:
    (verdict,) = (
        verdict
        for verdict in summary_of(finished_run)["verdicts"]
        if verdict["backend"]["name"] == backend
    )
    memory = verdict["memory"]
    assert (memory["last_good"], memory["first_bad"]) == (last_good, first_bad), memory
    assert memory["cause"] == "kv_memory"
    assert verdict["predicted"]["requests"] == predicted
    assert verdict["prediction_holds"] is True


@pytest.mark.parametrize("backend", ["paged", "contiguous"])
def test_less_than_a_hundredth_of_the_kv_memory_stays_unexplained(
    finished_run: Path, backend: str
) -> None:
    summary = summary_of(finished_run)
    cells = [cell for cell in summary["reconciled"] if cell["backend"] == backend]
    assert [cell["level"] for cell in cells] == [1, 4, 16, 32]
    for cell in cells:
        # theory comes from the model's config, which the run kept
        assert (cell["theory"], cell["bytes_per_token"]) == ("config", 1024)
        for stage in cell["stages"]:
            assert all(step["amount_bytes"] > 0 for step in stage["steps"])
            if stage["name"] in ("used", "reserved"):
                assert stage["unexplained_share"] < 0.01, cell
    (fit,) = (
        fit for fit in summary["fits"] if (fit["backend"], fit["kind"]) == (backend, "kv_bytes")
    )
    # 4 layers x 2 KV heads x 32 x 2 x 2 B
    assert fit["terms"][1]["value"] == pytest.approx(1024, rel=0.01)


def test_both_servers_say_the_same_up_to_ties(stack: LocalStack) -> None:
    options = ("--prompt-tokens", "16,200,700", "--output-tokens", "24", "--json")
    done = kvknee(stack.home, "equivalence", "--backends", stack.backends, *options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (one,) = json.loads(done.stdout)["comparisons"]
    # bf16 on both sides
    assert (one["tie_gap"], one["different"]) == (0.125, 0)
    assert one["same"] + one["tie"] == 12


def test_records_add_up_and_tokens_are_the_servers_own(finished_run: Path) -> None:
    run = RunDir.open(finished_run)
    records = list(run.records())
    assert run.damaged == {}
    assert len({(record.worker, record.seq) for record in records}) == len(records)
    for record in records:
        assert record.outcome == "ok", record
        assert record.output_tokens == record.asked_output_tokens == 128
        assert record.prompt_tokens == record.asked_prompt_tokens == 512
        assert record.output_tokens_source == "usage"
        assert sum(record.token_n or [1] * len(record.token_us)) == 128
    assert len({record.prompt_hash for record in records}) == len(records)
    stamped = sum(record.clock == "kernel" for record in records)
    assert stamped >= 0.9 * len(records)


def test_the_report_can_be_rebuilt_alone(finished_run: Path, tmp_path: Path) -> None:
    before = (finished_run / "summary.json").read_bytes()
    for name in ("summary.json", "report.md", "report.html"):
        (finished_run / name).unlink()
    done = kvknee(tmp_path, "report", str(finished_run))
    assert done.returncode == 0, done.stderr
    assert (finished_run / "summary.json").read_bytes() == before
    assert (finished_run / "report.html").stat().st_size > 10_000
    assert "KV-bound" in done.stdout.replace("\n", " ")


@pytest.mark.slow
def test_a_dynamic_cache_promises_only_what_a_request_may_need(
    stack: LocalStack, tmp_path: Path
) -> None:
    # 16 MiB / (640 tokens x 1,024 B) = 25.6: 25 at once, so 16 holds and 32 does not
    home = tmp_path / "home"
    options = ("--backends", "contiguous", "--cache", "dynamic", "--kv-budget", "16MiB")
    with local_stack(home, *options, models_from=stack.home) as dynamic:
        backends = ("--backends", f"contiguous={dynamic.contiguous_url}")
        levels = ("--levels", "16,32", "--min-requests", "40,64")
        done = run_scenario(dynamic, tmp_path / "results", *backends, *levels)
    assert done.returncode == 0, done.stderr[-4000:]
    (verdict,) = summary_of(newest_run(tmp_path / "results"))["verdicts"]
    assert verdict["backend"]["mode"] == "dynamic"
    assert verdict["predicted"]["requests"] == 25
    assert (verdict["memory"]["last_good"], verdict["memory"]["first_bad"]) == (16, 32)
