"""Two runs side by side: what changed, which way is better, what is not trusted."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from harness.analysis.summary_types import CellFigures
from harness.compare.compare import compare_runs
from harness.compare.metadata import mismatches, paired_names
from harness.compare.metrics import METRICS
from harness.compare.types import Comparison, RunSide
from harness.errors import UsageError
from tests.compare.support import change_at, pair_at, side_of
from tests.support.fake_records import failure
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run, manifest, replace_manifest

#: prefill 25 % and each token 0.5 ms slower
SLOWER = replace(PAGED, prefill_s=0.03, tpot_s=0.006)


def run(server: object = PAGED, **changes: object) -> Run:
    return build_run((server,), (4, 16), (100, 100), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def before() -> RunSide:
    return side_of(run(), "before")


@pytest.fixture(scope="module")
def after() -> RunSide:
    return side_of(run(SLOWER), "after")


@pytest.fixture(scope="module")
def slower(before: RunSide, after: RunSide) -> Comparison:
    return compare_runs(before, after)


def test_a_run_against_itself_shows_no_difference(before: RunSide) -> None:
    found = compare_runs(before, before)
    assert found.count("better") == found.count("worse") == 0
    for pair in found.pairs:
        for change in pair.changes:
            assert change.change is not None
            unchanged = 1.0 if change.metric.kind == "ratio" else 0.0
            assert change.change.value == unchanged
            assert change.change.low <= unchanged <= change.change.high
    assert "both are the same run" in found.notes[0]


def test_slower_is_worse_by_as_much_as_it_is(slower: Comparison) -> None:
    ttft = change_at(slower, 16, "ttft_p50_s")
    # prefill 30 ms in place of 24, the same jitter
    assert ttft.change is not None
    assert ttft.change.value == pytest.approx(30 / 24, rel=0.01)
    assert ttft.change.low < 30 / 24 < ttft.change.high
    assert ttft.outcome == "worse"
    # at 16 running 5.5 + 16 x 0.4 = 11.9 ms a token, then 12.4
    tpot = change_at(slower, 16, "tpot_p50_s")
    assert tpot.change is not None
    assert tpot.change.value == pytest.approx(12.4 / 11.9, rel=1e-3)
    assert tpot.outcome == "worse"


def test_less_throughput_is_worse_and_more_is_better(
    before: RunSide, after: RunSide, slower: Comparison
) -> None:
    fall = change_at(slower, 16, "output_tokens_per_s")
    assert fall.change is not None
    assert fall.change.value < 1.0
    assert fall.outcome == "worse"
    rise = change_at(compare_runs(after, before), 16, "output_tokens_per_s")
    assert rise.change is not None
    assert rise.outcome == "better"
    assert rise.change.value == pytest.approx(1.0 / fall.change.value)


def test_e107_lower_is_better_improving_passes(before: RunSide, after: RunSide) -> None:
    found = compare_runs(after, before)
    assert change_at(found, 16, "ttft_p95_s").outcome == "better"
    assert found.count("worse") == 0


def test_the_same_bytes_per_token(slower: Comparison) -> None:
    kv = change_at(slower, 16, "kv_bytes_per_token")
    assert (kv.a, kv.b, kv.outcome) == (1024.0, 1024.0, "same")


def test_every_metric_says_which_way_is_better() -> None:
    more = {metric.name for metric in METRICS if not metric.lower_is_better}
    assert more == {"output_tokens_per_s"}


def test_the_draws_follow_the_seed(before: RunSide, after: RunSide, slower: Comparison) -> None:
    again = compare_runs(before, after)
    other = compare_runs(before, after, seed=1)
    assert again == slower
    assert change_at(other, 16, "ttft_p50_s").change != change_at(slower, 16, "ttft_p50_s").change


def test_a_p99_that_nobody_earned_is_left_out(slower: Comparison) -> None:
    # 500 requests are needed, some 100 were counted
    names = {change.metric.name for change in pair_at(slower, 16).changes}
    assert "ttft_p99_s" not in names


def test_too_few_samples_get_no_verdict() -> None:
    few = side_of(build_run((PAGED,), (4,), (30,)))
    slow = side_of(build_run((SLOWER,), (4,), (30,)))
    change = change_at(compare_runs(few, slow), 4, "ttft_p95_s")
    assert change.outcome == "unsure"
    assert any("too few samples" in mark for mark in change.marks)
    assert change.change is not None


def with_cells(side: RunSide, change: dict[str, object]) -> RunSide:
    cells: tuple[CellFigures, ...] = tuple(
        replace(cell, **change)
        for cell in side.summary.cells  # type: ignore[arg-type]
    )
    return replace(side, summary=replace(side.summary, cells=cells))


def test_a_client_bound_side_gets_no_verdict(before: RunSide, after: RunSide) -> None:
    bound = replace(after.summary.cells[0].client, bound_by=("cpu",))
    found = compare_runs(before, with_cells(after, {"client": bound}))
    assert found.count("worse") == found.count("better") == 0
    assert pair_at(found, 16).marks == ("B: client_bound: the client was the limit",)


def test_an_unjudged_level_gets_no_verdict(before: RunSide, after: RunSide) -> None:
    found = compare_runs(with_cells(before, {"unjudged": "its window never opened"}), after)
    assert pair_at(found, 16).marks == ("A: unjudged: its window never opened",)
    assert found.count("worse") == 0


def test_a_warm_prefix_cache_is_marked(before: RunSide, after: RunSide) -> None:
    memory = after.summary.cells[0].memory
    assert memory is not None
    warm = with_cells(after, {"memory": replace(memory, prefix_hit_ratio=0.3)})
    found = compare_runs(before, warm)
    assert "warm prefix cache: 30.0 %" in pair_at(found, 16).marks[0]
    assert found.count("worse") == 0


def test_untrusted_stamps_mark_ttft_alone(before: RunSide, after: RunSide) -> None:
    latency = replace(after.summary.cells[1].latency, first_coalesced_share=0.2)
    cells = (after.summary.cells[0], replace(after.summary.cells[1], latency=latency))
    doubtful = replace(after, summary=replace(after.summary, cells=cells))
    found = compare_runs(before, doubtful)
    assert change_at(found, 16, "ttft_p50_s").outcome == "unsure"
    assert change_at(found, 16, "e2e_p50_s").outcome == "worse"
    assert change_at(found, 4, "ttft_p50_s").outcome == "worse"


def test_failures_are_compared_by_difference(before: RunSide) -> None:
    broken = run()
    key = broken.records[-1].cell
    sent = [r.t_sent_s or 0.0 for r in broken.records if r.cell == key][60:100]
    broken.records += [
        failure(key, 9000 + i, user=99, t_intended_s=at, t_sent_s=at, t_end_s=at + 0.001)
        for i, at in enumerate(sent)
    ]
    change = change_at(compare_runs(before, side_of(broken)), 16, "failure_share")
    assert change.change is not None
    assert change.b is not None
    assert change.change.value == pytest.approx(change.b)
    assert change.change.low > 0
    assert change.outcome == "worse"


def test_another_workload_is_refused_by_name(before: RunSide) -> None:
    other = side_of(build_run((PAGED,), (4, 8), (100, 100)), "other")
    with pytest.raises(UsageError) as error:
        compare_runs(before, other)
    assert "workload.levels (4, 16 against 4, 8)" in str(error.value)
    assert "--force" in str(error.value)
    assert "\n" not in str(error.value)
    forced = compare_runs(before, other, force=True)
    assert forced.forced
    assert [pair.cell.level for pair in forced.pairs] == [4.0]
    assert [cell.level for cell in forced.only_a] == [16.0]
    assert [cell.level for cell in forced.only_b] == [8.0]


def with_info(source: Run, **changes: object) -> RunSide:
    old = source.manifest.backends[0]
    info = msgspec.structs.replace(old, **changes)  # type: ignore[arg-type]
    facts = {
        **source.manifest.fingerprint,
        **{f"paged.{key}": value for key, value in changes.items()},
    }
    changed = replace_manifest(source.manifest, backends=(info,), fingerprint=facts)
    return side_of(replace(source, manifest=changed), "other")


def test_another_model_is_refused(before: RunSide) -> None:
    other = with_info(run(), model="large")
    with pytest.raises(UsageError, match=r"paged.model \(.* against large\)"):
        compare_runs(before, other)
    assert compare_runs(before, other, force=True).forced


@pytest.mark.parametrize(
    ("fact", "value"), [("dtype", "float16"), ("engine_version", "0.33.0"), ("num_blocks", 64)]
)
def test_other_facts_are_said_and_compared(before: RunSide, fact: str, value: object) -> None:
    found = compare_runs(before, with_info(run(), **{fact: value}))
    assert [item.fact for item in found.mismatches] == [f"paged.{fact}"]
    assert not found.forced
    assert found.pairs


def test_hardware_and_slo_are_said() -> None:
    a = manifest((PAGED,), fingerprint={"hardware.cpu": "x", "workload.hash": "1"})
    b = manifest((PAGED,), fingerprint={"hardware.cpu": "y", "workload.hash": "2"}, slo=None)
    found = mismatches(a, b, {"paged": "paged"})
    assert [(item.fact, item.a, item.b, item.refuses) for item in found] == [
        ("hardware.cpu", "x", "y", False)
    ]
    c = manifest((PAGED,), fingerprint={}, slo=msgspec.structs.replace(a.slo, ttft_s=1.0))
    facts = {item.fact for item in mismatches(a, c, {"paged": "paged"})}
    assert facts == {"hardware.cpu", "slo"}


def test_lone_backends_are_paired_whatever_their_names(before: RunSide) -> None:
    a = manifest((PAGED,))
    b = manifest((replace(PAGED, info=msgspec.structs.replace(PAGED.info, name="mine")),))
    assert paired_names(a, b) == {"paged": "mine"}
    assert mismatches(a, b, {"paged": "mine"})[0].fact == "backend"


def test_nothing_in_common_is_refused(before: RunSide) -> None:
    other = with_info(run(), mode="dynamic")
    bare = replace(other, summary=replace(other.summary, cells=()))
    with pytest.raises(UsageError, match="no level in common"):
        compare_runs(before, bare)


def test_an_interrupted_run_is_said(before: RunSide) -> None:
    source = run()
    stopped = replace(source, manifest=replace_manifest(source.manifest, status="interrupted"))
    found = compare_runs(before, side_of(stopped, "stopped"))
    assert "stopped was interrupted: its last levels may be missing" in found.notes
