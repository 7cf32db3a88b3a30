"""Records that cannot be true are left out whole, and that is said."""

from __future__ import annotations

import pytest

from harness.analysis.run import analyse
from harness.analysis.sound import SoundRecords, sound
from harness.analysis.summary_types import RunSummary
from harness.records import CellKey
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import Run, build_run, replace_manifest

CELL = cell_of(PAGED, 4)


def summed(run: Run, **more: dict[str, str]) -> RunSummary:
    return analyse(run.manifest, iter(run.records), run.events, run.series, **more)  # type: ignore[arg-type]


def changed(run: Run, rows: slice, **changes: object) -> Run:
    for index in range(*rows.indices(len(run.records))):
        old = run.records[index]
        facts = {name: getattr(old, name) for name in old.__struct_fields__}
        run.records[index] = type(old)(**{**facts, **changes})
    return run


def findings(summary: RunSummary) -> dict[str, str]:
    return {finding.code: finding.text for finding in summary.findings}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"token_n": (1, 2, 0)},
        # an estimate may count more pieces of text than tokens were asked for
        {"output_tokens": 500, "output_tokens_source": "client_estimated"},
        {"coalesced": (0, 2)},
        # times that contradict each other are judged as such, not as damage
        {"token_us": (-5, -6, -7)},
        {"t_sent_s": None, "token_us": (), "output_tokens": None, "outcome": "connect"},
    ],
)
def test_what_a_load_can_write_is_sound(changes: dict[str, object]) -> None:
    assert sound(record(CELL, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"output_tokens": 2**63 - 1},
        {"output_tokens": 129},  # of 128, as the server states
        {"output_tokens": -5},
        {"prompt_tokens": 10**9 + 1},
        {"cached_prompt_tokens": -1},
        {"asked_prompt_tokens": -1},
        {"asked_output_tokens": -1},
        {"user": -1},
        {"seq": 2**40},
        {"ignored_events": -3},
        {"token_n": (1,)},  # three events
        {"token_n": (1, 1, 2**31)},
        {"token_n": (1, -1, 1)},
        {"token_us": (2**62, 2**62, 2**62)},
        {"token_us": (), "token_n": (1,)},
        {"coalesced": (10**9, -5)},
        {"first_content_us": 2**60},
        {"t_sent_s": 1e308},
        {"t_sent_s": None},  # a success that was never sent
        {"token_us": ()},  # a success without a token
        {"t_end_s": float("nan")},
    ],
)
def test_what_no_load_can_write_is_left_out(changes: dict[str, object]) -> None:
    kept = SoundRecords([record(CELL), record(CELL, **changes), failure(CELL, 2)])
    assert [item.outcome for item in kept] == ["ok", "reset"]
    assert kept.left_out == 1


@pytest.mark.parametrize(("output_tokens", "level"), [(128, -1.0), (128, 0.0), (-128, 4.0)])
def test_a_cell_that_cannot_be_is_left_out(output_tokens: int, level: float) -> None:
    cell = CellKey("paged", "paged", 512, output_tokens, level)
    assert not sound(record(cell, asked_output_tokens=128))


def test_records_left_out_are_counted_in_a_finding_and_in_no_figure() -> None:
    run = changed(build_run((PAGED,), (4,), (100,)), slice(40, 42), output_tokens=2**63 - 1)
    summary = summed(run)
    assert findings(summary)["damaged_records"].startswith("2 records of records.jsonl hold ")
    rates = summary.cells[0].throughput
    # every request that counts has 128 tokens; 4 users at 128 / 0.94 s are below 600 /s
    assert rates.counted_output_tokens == 128 * summary.cells[0].counts.ok
    assert 400 < (rates.output_tokens_per_s or 0) < 600


def test_a_stated_zero_beside_tokens_seen_is_no_count() -> None:
    summary = summed(changed(build_run((PAGED,), (4,), (100,)), slice(None), output_tokens=0))
    cell = summary.cells[0]
    # 128 events of one token each were seen
    assert cell.throughput.counted_output_tokens == 128 * cell.counts.ok
    assert "the client's estimate" in findings(summary)["tokens_estimated"]


def test_a_manifest_without_backends_says_that_and_whose_requests_it_lacks() -> None:
    run = build_run((PAGED,), (4,), (20,))
    run.manifest = replace_manifest(run.manifest, backends=())
    summary = summed(run)
    assert summary.cells == ()
    assert "names no backend" in findings(summary)["no_backend"]
    assert f"{len(run.records)} requests are left out" in findings(summary)["unknown_backend"]


def test_requests_of_a_backend_that_the_manifest_lacks_are_a_finding() -> None:
    run = build_run((PAGED, STATIC), (4,), (20,))
    run.manifest = replace_manifest(run.manifest, backends=(PAGED.info,))
    assert "speak of contiguous, which" in findings(summed(run))["unknown_backend"]
    assert "no_backend" not in findings(summed(run))


def test_a_file_that_gave_nothing_is_a_finding_with_its_reason() -> None:
    run = build_run((PAGED,), (4,), (20,))
    absent = {"events.jsonl": "is missing", "paged.jsonl.gz": "is no file"}
    found = [f for f in summed(run, absent=absent).findings if f.code == "file_missing"]
    assert [f.severity for f in found] == ["invalid", "warning"]
    assert found[0].text.startswith("events.jsonl is missing: when levels began and closed is")
