"""``scenarios/open_loop.py`` and ``replay.py`` end to end, against a server of the test's."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from tests.scenarios.locust_process import (
    Ended,
    end,
    events_of,
    headless,
    records_of,
    run_dirs,
    started,
    wait_until,
)
from tests.support.fake_openai import VLLM_PAGE, FakeOpenAi, serve

QUICK = (
    *("--request-rate", "20,40", "--min-requests", "10", "--min-level-seconds", "0"),
    *("--warmup-seconds", "0.2", "--prompt-tokens", "8", "--output-tokens", "4"),
    *("--prometheus-url", "none"),
)


def trace_file(folder: Path) -> Path:
    """30 requests in 2.9 s in Mooncake's form: prompts of 2 blocks, the first one shared."""
    path = folder / "trace.jsonl"
    rows = [
        {
            "timestamp": 100 * n,
            "input_length": 600 + n,
            "output_length": 2 + n % 3,
            "hash_ids": [0, 1 + n],
        }
        for n in range(30)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_an_open_loop_from_options_to_report(tmp_path: Path) -> None:
    with serve(FakeOpenAi(metrics=VLLM_PAGE)) as a, serve(FakeOpenAi()) as b:
        backends = f"paged={a.url},other={b.url}"
        ended = headless("--backends", backends, *QUICK, folder=tmp_path, scenario="open_loop")
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    work = run.manifest().workload
    assert (run.manifest().status, work.scenario, work.loop) == ("complete", "open_loop", "open")
    records, events = records_of(run), events_of(run)
    assert {record.outcome for record in records} == {"ok"}
    assert len({record.prompt_hash for record in records}) == len(records)
    starts = {e.cell: e for e in events if e.kind == "level_start"}
    assert [(c.backend, c.level) for c in starts if c is not None] == [
        *(("paged", 20), ("other", 20), ("other", 40), ("paged", 40)),
    ]
    due = {}
    for cell, start in starts.items():
        assert cell is not None
        mine = [r for r in records if r.cell == cell]
        # nobody is early
        assert all(r.t_sent_s is not None and r.t_sent_s >= r.t_intended_s for r in mine)
        due[cell.backend, cell.level] = [round(r.t_intended_s - start.t_s, 6) for r in mine]
    # both backends are asked at the same times: the shorter list is the start of the other
    for level in (20, 40):
        one, two = sorted((sorted(due[name, level]) for name in ("paged", "other")), key=len)
        assert one == two[: len(one)]
    summary = json.loads((run.path / "summary.json").read_text())
    for cell in summary["cells"]:
        assert cell["open_loop"]["due"] == cell["counts"]["sent"] == 10
        assert cell["open_loop"]["lateness_s"]["n"] == 10
        assert cell["latency"]["ttft_intended_s"]["p50"] > cell["latency"]["ttft_s"]["p50"]
    found = {f["code"] for f in summary["findings"]}
    assert not found & {"window_not_full", "window_never_opened", "over_saturated", "unsent"}
    assert "requests/s" in (run.path / "report.html").read_text()
    assert "late p95" in (run.path / "report.md").read_text()
    assert "TTFT     paged 20/s" in ended.text


def test_a_replay_from_a_trace_to_report(tmp_path: Path) -> None:
    with serve(FakeOpenAi()) as server:
        ended = headless(
            *("--backends", f"a={server.url}", "--trace", str(trace_file(tmp_path))),
            *("--time-scale", "0.5", "--prometheus-url", "none"),
            folder=tmp_path,
            scenario="replay",
        )
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    work = run.manifest().workload
    assert work.open_loop is not None
    trace = work.open_loop.trace
    assert trace is not None
    assert (trace.name, trace.requests, trace.shortened) == ("trace.jsonl", 30, 0)
    # the lengths of the trace, in its order: medians 614 and 3; 30 requests in 1.45 s
    assert (work.prompt_tokens, work.output_tokens, work.levels) == (614, 3, (20.6897,))
    records = sorted(records_of(run), key=lambda r: r.t_intended_s)
    assert [r.asked_prompt_tokens for r in records] == [600 + n for n in range(30)]
    assert [r.output_tokens for r in records] == [2 + n % 3 for n in range(30)]
    assert [r.prompt_tokens for r in records] == [600 + n for n in range(30)]
    first_s = records[0].t_intended_s
    assert [round(r.t_intended_s - first_s, 6) for r in records] == [
        round(0.05 * n, 6) for n in range(30)
    ]
    (cell,) = json.loads((run.path / "summary.json").read_text())["cells"]
    assert cell["counts"]["ok"] == 30


@pytest.mark.slow
def test_ctrl_c_keeps_the_results(tmp_path: Path) -> None:
    """The server stops after the first token of each answer, so requests are in flight."""
    fake = FakeOpenAi(gate=threading.Event())
    with serve(fake) as server:
        fake.gate.clear()
        options = ("--headless", "--backends", f"a={server.url}", *QUICK)
        with started(*options, folder=tmp_path, scenario="open_loop") as process:
            wait_until(lambda: fake.streams > 3)
            process.send_signal(signal.SIGINT)
            ended = end(process)
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "interrupted"
    records = records_of(run)
    assert records
    assert {record.outcome for record in records} == {"cancelled"}
    # the probe's request was the first
    assert len(records) == fake.streams - 1
    kinds = [event.kind for event in events_of(run)]
    assert kinds.count("level_end") == 1
    assert kinds.count("level_skipped") == 1
    assert (run.path / "report.html").is_file()


def refused(scenario: str, folder: Path, *options: str) -> Ended:
    # the options are checked before any server is asked
    backends = ("--backends", "a=http://127.0.0.1:1")
    return headless(*backends, *options, folder=folder, scenario=scenario)


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        ("open_loop", ("--request-rate", "0"), "--request-rate: '0' is not valid; expected"),
        ("open_loop", ("--levels", "4"), "unrecognized arguments: --levels"),
        ("open_loop", ("--processes", "2"), "--processes: this scenario measures from one"),
        ("replay", (), "--trace: none given"),
        ("replay", ("--trace", "/nowhere.csv"), "--trace: /nowhere.csv cannot be read (No such"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    scenario: str, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    ended = refused(scenario, tmp_path, *options)
    assert ended.code == 2
    assert words in ended.last_error()
    assert not run_dirs(tmp_path)
