"""``locust -f scenarios/matrix.py`` end to end: plan, run, interruption, resumption."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from harness.records import CellKey, RunEvent
from harness.report.build import build_report
from harness.rundir import RunDir
from harness.workload import MatrixLimits
from tests.scenarios.locust_process import (
    end,
    events_of,
    headless,
    records_of,
    run_dirs,
    started,
    wait_until,
)
from tests.scenarios.test_concurrency import closed_port
from tests.simulated.support import running
from tests.support.fake_openai import FakeOpenAi, serve

#: 2 prompts x 2 outputs x 2 levels = 8 cells a backend
SMALL = (
    *("--prompt-tokens", "8,24", "--output-tokens", "4,12", "--levels", "1,3"),
    *("--min-requests", "4", "--min-level-seconds", "0", "--prometheus-url", "none"),
)


def started_cells(run: RunDir) -> Counter[CellKey]:
    return Counter(e.cell for e in events_of(run) if e.kind == "level_start" and e.cell)


def ended_cells(run: RunDir) -> list[CellKey]:
    return [
        e.cell
        for e in events_of(run)
        if e.kind == "level_end" and e.cell and e.detail["reason"] in ("complete", "time_limit")
    ]


def only_run(folder: Path) -> RunDir:
    (run,) = run_dirs(folder)
    return run


@pytest.mark.slow
def test_every_length_at_every_level_in_one_run(tmp_path: Path) -> None:
    with serve(FakeOpenAi()) as a, serve(FakeOpenAi()) as b:
        ended = headless(
            "--backends", f"a={a.url},b={b.url}", *SMALL, folder=tmp_path, scenario="matrix"
        )
    assert ended.code == 0, ended.text
    assert "16 cells to measure, 64 counted requests" in ended.out
    assert "an estimate from two probe requests a backend" in ended.out
    run = only_run(tmp_path)
    # 2 backends x 2 x 2 x 2, each once
    assert len(started_cells(run)) == 16
    assert set(started_cells(run).values()) == {1}
    records = records_of(run)
    assert {r.outcome for r in records} == {"ok"}
    for record in records:
        assert (record.prompt_tokens, len(record.token_us)) == (
            record.cell.prompt_tokens,
            record.cell.output_tokens,
        )
    assert len({r.prompt_hash for r in records}) == len(records)
    summary = build_report(run.path)
    assert len(summary.cells) == 16
    assert "## Matrix" in (run.path / "report.md").read_text()
    assert "<h2>Matrix</h2>" in (run.path / "report.html").read_text()
    # Locust's own table tells the lengths apart, too
    assert "TTFT     a 24+12 c3" in ended.text


def test_a_plan_alone_sends_no_load_and_makes_no_run(tmp_path: Path) -> None:
    fake = FakeOpenAi(models=[{"id": "m", "max_model_len": 30}])
    with serve(fake) as server:
        backends = ("--backends", f"a={server.url}")
        ended = headless(*backends, *SMALL, "--dry-run", folder=tmp_path, scenario="matrix")
    assert ended.code == 0, ended.text
    # 24 + 12 = 36 > 30: two cells
    assert "6 cells to measure, 24 counted requests; 2 cells left out" in ended.out
    assert "36 tokens a request, the server's context holds 30" in ended.out
    assert run_dirs(tmp_path) == []
    # one request proves that it streams, two tell its speed
    assert fake.streams == 3


def half_way(folder: Path, after: int) -> bool:
    """Whether so many cells have ended and another one has records already."""
    manifests = list((folder / "results").glob("*/manifest.json"))
    if not manifests:
        return False
    run = RunDir.open(manifests[0].parent)
    ended = ended_cells(run)
    current = set(started_cells(run)) - set(ended)
    return len(ended) >= after and bool(current & {r.cell for r in records_of(run)})


@pytest.mark.slow
def test_a_killed_run_resumes_and_does_no_cell_twice(tmp_path: Path) -> None:
    # 10 ms a step: a cell of 12 requests, 3 at a time, of 12 tokens lasts half a second
    server = ("--mode", "modelled", "--step-base", "10ms", "--max-model-len", "256")
    options = (*SMALL, "--min-requests", "12")
    with running(*server) as url:
        load = ("--headless", "--backends", f"a={url}", *options)
        with started(*load, folder=tmp_path, scenario="matrix") as process:
            wait_until(lambda: half_way(tmp_path, after=3))
            process.send_signal(signal.SIGKILL)
            process.wait()
        run = only_run(tmp_path)
        assert run.manifest().status == "running"
        finished = set(ended_cells(run))
        begun = set(started_cells(run)) - finished
        assert len(finished) >= 3
        assert len(begun) == 1
        before = Counter(r.cell for r in records_of(run))
        # a write that the kill cut short
        with (run.path / "records.jsonl").open("ab") as journal:
            journal.write(b'{"worker":"local","seq":9')
        resumed = headless("--resume", str(run.path), folder=tmp_path, scenario="matrix")
        assert resumed.code == 0, resumed.text
        again = headless("--resume", str(run.path), folder=tmp_path, scenario="matrix")
    assert f"{len(finished)} cells finished before, not done again" in resumed.out
    # everything is done: nothing to do is no fault
    assert again.code == 0, again.text
    assert "0 cells to measure, 0 counted requests; 8 cells finished before" in again.out
    run = only_run(tmp_path)
    assert run.manifest().status == "complete"
    starts = started_cells(run)
    assert len(starts) == 8
    assert all(starts[cell] == 1 for cell in starts if cell not in begun)
    assert all(starts[cell] == 2 for cell in begun)
    assert Counter(ended_cells(run)) == Counter(dict.fromkeys(starts, 1))
    redone = [e.cell for e in events_of(run) if e.kind == "level_redone"]
    assert set(redone) == begun
    records = records_of(run)
    # finished cells have the records that they had
    after = Counter(r.cell for r in records)
    assert {cell: after[cell] for cell in finished} == {cell: before[cell] for cell in finished}
    summary = build_report(run.path)
    assert len(summary.cells) == 8
    (cell,) = begun
    (figures,) = (item for item in summary.cells if item.cell == cell)
    new = [r for r in records if r.cell == cell and r.worker == "local-2"]
    # the first half of the interrupted cell stands in the file and in no figure
    assert before[cell] + len(new) == after[cell]
    assert figures.counts.recorded == len(new)
    assert all(item.counts.ok >= 12 for item in summary.cells)
    codes = {finding.code for finding in summary.findings}
    assert not codes & {"interrupted", "never_ended", "damaged_lines", "duplicate_records"}
    # times of one run rise over both halves
    assert all(a.t_s <= b.t_s for a, b in zip(_no_samples(run), _no_samples(run)[1:], strict=False))


def test_a_run_killed_behind_its_last_level_gets_its_report(tmp_path: Path) -> None:
    limits = ("--budget-minutes", "30", "--beyond-kv-budget", "skip")
    with serve(FakeOpenAi()) as server:
        load = ("--backends", f"a={server.url}", *SMALL, "--levels", "1")
        ended = headless(*load, *limits, folder=tmp_path, scenario="matrix")
        assert ended.code == 0, ended.text
        # as a kill right behind the last line of the last level leaves it
        run = only_run(tmp_path)
        events = (run.path / "events.jsonl").read_bytes()
        last = events.rindex(b'"kind":"level_end"')
        (run.path / "events.jsonl").write_bytes(events[: events.index(b"\n", last)])
        run.write_manifest(msgspec.structs.replace(run.manifest(), status="running"))
        for name in ("summary.json", "report.md", "report.html"):
            (run.path / name).unlink()
        resumed = headless("--resume", str(run.path), folder=tmp_path, scenario="matrix")
    assert resumed.code == 0, resumed.text
    assert "0 cells to measure" in resumed.out
    assert "report: " in resumed.out
    assert len(started_cells(run)) == sum(started_cells(run).values()) == 4
    assert run.manifest().status == "complete"
    assert run.manifest().matrix == MatrixLimits(budget_s=1800.0, skip_beyond_budget=True)
    summary = msgspec.json.decode((run.path / "summary.json").read_bytes())
    assert len(summary["cells"]) == 4


def _no_samples(run: RunDir) -> list[RunEvent]:
    return [event for event in events_of(run) if event.kind != "client_sample"]


def interrupted_run(folder: Path) -> Path:
    """A run that Ctrl-C ended after its first cells."""
    fake = FakeOpenAi()
    with serve(fake) as server:
        options = ("--headless", "--backends", f"a={server.url}", *SMALL)
        with started(*options, folder=folder, scenario="matrix") as process:
            wait_until(lambda: half_way(folder, after=1))
            fake.gate.clear()
            process.send_signal(signal.SIGINT)
            ended = end(process)
        fake.gate.set()
    assert ended.code == 1, ended.text
    return only_run(folder).path


def test_ctrl_c_keeps_the_results_and_the_rest_is_said(tmp_path: Path) -> None:
    path = interrupted_run(tmp_path)
    run = RunDir.open(path)
    assert run.manifest().status == "interrupted"
    text = (path / "report.md").read_text()
    assert "the run was interrupted before it" in text
    assert len(ended_cells(run)) >= 1


def test_another_workload_is_refused_and_named(tmp_path: Path) -> None:
    path = interrupted_run(tmp_path)
    with serve(FakeOpenAi()) as server:
        backends = ("--backends", f"a={server.url}")
        ended = headless(
            *backends, "--resume", str(path), "--levels", "1,2", folder=tmp_path, scenario="matrix"
        )
    assert ended.code == 2
    assert "--levels is 1,2, there it is 1,3" in ended.last_error()
    assert RunDir.open(path).manifest().status == "interrupted"


def test_another_server_is_refused_and_named(tmp_path: Path) -> None:
    path = interrupted_run(tmp_path)
    with serve(FakeOpenAi(models=[{"id": "m", "max_model_len": 512}])) as server:
        backends = ("--backends", f"a={server.url}")
        ended = headless(*backends, "--resume", str(path), folder=tmp_path, scenario="matrix")
    assert ended.code == 2
    assert "a.max_model_len is 512, there it is 2048" in ended.last_error()


def test_what_cannot_be_resumed_is_one_line(tmp_path: Path) -> None:
    with serve(FakeOpenAi()) as server:
        backends = ("--backends", f"a={server.url}")
        ended = headless(
            *backends, "--resume", str(tmp_path / "no"), folder=tmp_path, scenario="matrix"
        )
    assert ended.code == 2
    assert "no run directory" in ended.last_error()


def test_a_cell_that_fails_is_a_row_that_says_why_and_the_rest_go_on(tmp_path: Path) -> None:
    fake = FakeOpenAi()

    def full(peer: object, request: object) -> None:
        if request.json["max_tokens"] == 12:  # type: ignore[attr-defined]
            peer.reply(503, {"detail": "KV cache is full"})  # type: ignore[attr-defined]
        else:
            fake.answer(peer, request)  # type: ignore[arg-type]

    fake.fault = full
    with serve(fake) as server:
        ended = headless(
            *("--backends", f"a={server.url}", *SMALL, "--levels", "1"),
            folder=tmp_path,
            scenario="matrix",
        )
    # half of the cells failed whole: a script must see it
    assert ended.code == 1, ended.text
    run = only_run(tmp_path)
    assert run.manifest().status == "complete"
    assert len(ended_cells(run)) == 4
    summary = msgspec.json.decode((run.path / "summary.json").read_bytes())
    good = {(c["prompt_tokens"], c["output_tokens"]) for c in summary["cells"] if c["completed"]}
    assert good == {(8, 4), (24, 4)}
    assert "4 failed (HTTP 503: KV cache is full)" in ended.out


@pytest.mark.slow
def test_a_backend_that_dies_leaves_the_cells_of_the_others(tmp_path: Path) -> None:
    dying, other = FakeOpenAi(), FakeOpenAi()
    with serve(dying) as a, serve(other) as b:
        options = ("--headless", "--backends", f"a={a.url},b={b.url}", *SMALL)
        with started(*options, folder=tmp_path, scenario="matrix") as process:
            wait_until(lambda: half_way(tmp_path, after=2))
            a.kill()
            ended = end(process)
    assert ended.code == 1, ended.text
    run = only_run(tmp_path)
    assert run.manifest().status == "failed"
    done = Counter(cell.backend for cell in ended_cells(run))
    # all of b, and of a what had ended before
    assert done["b"] == 8
    assert done["a"] < 8
    skipped = [e for e in events_of(run) if e.kind == "level_skipped"]
    assert {e.cell.backend for e in skipped if e.cell} <= {"a"}
    assert "not measured: the backend stopped answering" in (run.path / "report.md").read_text()


def test_the_loss_of_a_backend_is_refused_before_the_run(tmp_path: Path) -> None:
    ended = headless(
        *("--backends", f"a=http://127.0.0.1:{closed_port()}", *SMALL),
        folder=tmp_path,
        scenario="matrix",
    )
    assert ended.code == 2
    assert "cannot be reached" in ended.last_error()


def test_help_teaches(tmp_path: Path) -> None:
    ended = headless("--scenario-help", folder=tmp_path, scenario="matrix")
    assert ended.code == 0
    for option in ("--resume", "--plan-only", "--budget-minutes", "--beyond-kv-budget"):
        assert option in ended.text
    refused = headless("--processes", "2", folder=tmp_path, scenario="matrix")
    assert refused.code == 2
    assert "measures from one process" in refused.text
