"""Scenarios whose requests differ, end to end: fragmentation, decompose, shared_prefix and
chat_sessions against simulated engines and servers of the test's.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.report.build import build_report
from harness.rundir import RunDir
from tests.scenarios.locust_process import (
    ROOT,
    end,
    headless,
    records_of,
    run_dirs,
    started,
    wait_until,
)
from tests.simulated.support import running
from tests.support.fake_openai import FakeOpenAi, serve

COMMON = ("--prometheus-url", "none", "--slo", "")
MODEL = ("--mode", "modelled", "--max-model-len", "512", "--step-base", "1ms")
STEP = ("--step-per-running", "20us", "--kv-bytes-per-token", "1024")


@pytest.fixture(scope="module")
def engines() -> Iterator[str]:
    """4 MiB of KV each: 256 blocks of 16 tokens (one is nobody's), or 8 slots of 512."""
    with (
        running(*MODEL, *STEP, "--layout", "paged", "--num-blocks", "256") as paged,
        running(*MODEL, *STEP, "--layout", "contiguous", "--kv-budget", "4MiB") as slots,
    ):
        yield f"slots={slots},paged={paged}"


def summary_of(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "summary.json").read_text())
    return found


MIXED = (
    *("--levels", "48", "--min-requests", "60", "--min-level-seconds", "4"),
    *("--lengths", "lognormal:60,0.8,40,0.5", "--length-count", "100"),
)


@pytest.mark.slow
def test_fragmentation_from_options_to_report(engines: str, tmp_path: Path) -> None:
    ended = headless(
        "--backends", engines, *COMMON, *MIXED, folder=tmp_path, scenario="fragmentation"
    )
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    # the same list for both
    lists = {}
    for name in ("slots", "paged"):
        mine = sorted((r for r in records if r.cell.backend == name), key=lambda r: r.seq)
        lists[name] = [(r.asked_prompt_tokens, r.asked_output_tokens) for r in mine[:60]]
    assert lists["slots"] == lists["paged"]
    assert len(set(lists["slots"])) > 30
    assert max(sum(pair) for pair in lists["slots"]) <= 512
    slots, paged = summary_of(run)["scenario"]["fragmentation"]
    assert (slots["policy"], paged["policy"]) == ("max", "paged")
    assert slots["held"] == 8
    assert slots["share"] < 0.5 < 0.8 < paged["share"]
    # the simulation knows the engines' rules; what is held is known at four to five moments of
    # eight requests whose lengths vary by some 80 %: 0.8 / sqrt(36) = 13 % of standard error
    assert slots["predicted"]["held"] == 8
    assert 0.5 < slots["predicted"]["stored_tokens"] / slots["tokens_held"] < 2
    assert 0.6 < paged["predicted"]["held"] / paged["held"] < 1.6
    assert "Reserved KV memory that held tokens" in ended.text
    # from the directory alone
    before = (run.path / "summary.json").read_bytes()
    build_report(run.path)
    assert (run.path / "summary.json").read_bytes() == before


def test_the_lengths_of_a_trace(engines: str, tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:15:4{n}.5,{100 * (n + 1)},{10 * (n + 1)}" for n in range(10)]
    path.write_text("\n".join(lines))
    ended = headless(
        *("--backends", engines.partition(",")[0], *COMMON, "--trace", str(path)),
        *("--levels", "4", "--min-requests", "12", "--min-level-seconds", "0"),
        folder=tmp_path,
        scenario="fragmentation",
    )
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    asks = json.loads((run.path / "manifest.json").read_text())["workload"]["asks"]
    # the longest has 1,100 tokens, the server 512
    assert (asks["source"], asks["requests"], asks["over_length"]) == ("azure.csv", 10, "scale")
    assert asks["factor"] == pytest.approx(512 / 1100)
    mine = sorted(records_of(run), key=lambda r: r.seq)
    assert [r.asked_prompt_tokens for r in mine[:2]] == [
        int(100 * 512 / 1100),
        int(200 * 512 / 1100),
    ]


@pytest.mark.slow
def test_decompose_takes_urls(engines: str, tmp_path: Path) -> None:
    ended = headless("--backends", engines, *COMMON, *MIXED, folder=tmp_path, scenario="decompose")
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    (waterfall,) = summary_of(run)["scenario"]["waterfalls"]
    assert [(s["backend"], s["change"]) for s in waterfall["steps"]] == [
        *(("slots", None), ("paged", "layout")),
    ]
    assert waterfall["steps"][0]["row"]["held"] < waterfall["steps"][1]["row"]["held"]
    assert "From one request at a time to a paged cache" in ended.text
    assert "Step by step" in (run.path / "report.html").read_text()


def test_a_shared_prefix_from_options_to_report(engines: str, tmp_path: Path) -> None:
    ended = headless(
        *("--backends", engines, *COMMON, "--levels", "3", "--min-requests", "20"),
        *("--min-level-seconds", "0", "--prefix-tokens", "64", "--prompt-tokens", "16"),
        *("--output-tokens", "8", "--reuse", "0,0.5"),
        folder=tmp_path,
        scenario="shared_prefix",
    )
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    rows = summary_of(run)["scenario"]["prefixes"]
    assert [(r["cell"]["backend"], r["cell"]["variant"]) for r in rows] == [
        *(("slots", "reuse 0"), ("slots", "reuse 0.5")),
        *(("paged", "reuse 0"), ("paged", "reuse 0.5")),
    ]
    assert rows[0]["planned_ratio"] == 0
    # half of the requests share 64 of 80 tokens
    assert rows[1]["planned_ratio"] == pytest.approx(0.4, abs=0.05)
    assert rows[1]["n_shared"] == pytest.approx(rows[1]["n"] / 2, abs=1)
    # neither engine has a prefix cache; only one of them counts
    assert "slots: states no prefix cache" in " ".join(ended.text.split())
    findings = {f["code"] for f in summary_of(run)["findings"]}
    assert "unexpected_prefix_hits" not in findings
    assert len(summary_of(run)["verdicts"]) == 4


CHAT = (
    *("--turns", "3", "--think-time", "0.01", "--system-tokens", "32", "--user-tokens", "16"),
    *("--output-tokens", "8", "--levels", "3", "--min-requests", "20"),
    *("--min-level-seconds", "0"),
)


def test_conversations_from_options_to_report(engines: str, tmp_path: Path) -> None:
    ended = headless(
        "--backends", engines, *COMMON, *CHAT, folder=tmp_path, scenario="chat_sessions"
    )
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    assert {r.outcome for r in records} == {"ok"}
    # 32 + 16; 8 and 16 more at each turn
    assert {(r.turn, r.prompt_tokens) for r in records} == {(1, 48), (2, 72), (3, 96)}
    found = summary_of(run)["scenario"]
    assert [row["turn"] for row in found["turns"]] == [1, 2, 3] * 2
    assert [row["cell"]["backend"] for row in found["conversations"]] == ["slots", "paged"]
    codes = {f["code"] for f in summary_of(run)["findings"]}
    assert not codes & {"window_not_full", "window_never_opened"}
    assert "Turn by turn" in ended.text


@pytest.mark.slow
def test_ctrl_c_keeps_the_conversations(tmp_path: Path) -> None:
    """The server stops after the first token of each answer, so requests are in flight."""
    fake = FakeOpenAi(gate=threading.Event())
    with serve(fake) as server:
        fake.gate.clear()
        options = ("--headless", "--backends", f"a={server.url}", *COMMON, *CHAT)
        with started(*options, folder=tmp_path, scenario="chat_sessions") as process:
            wait_until(lambda: fake.streams > 2)
            process.send_signal(signal.SIGINT)
            ended = end(process)
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "interrupted"
    assert {record.outcome for record in records_of(run)} == {"cancelled"}
    assert (run.path / "report.html").is_file()


@pytest.mark.parametrize(
    ("scenario", "options", "words"),
    [
        ("fragmentation", ("--lengths", "flat"), "--lengths: 'flat' is not valid; expected"),
        ("fragmentation", ("--prompt-tokens", "4"), "unrecognized arguments: --prompt-tokens"),
        ("fragmentation", ("--trace", "/nowhere.csv"), "--trace: /nowhere.csv cannot be read"),
        ("fragmentation", ("--processes", "2"), "--processes: this scenario measures from one"),
        ("decompose", ("--context", "x"), "--context: 'x' is not valid; expected"),
        ("shared_prefix", ("--reuse", "2"), "--reuse: '2' is not valid; expected"),
        ("chat_sessions", ("--turns", "none"), "--turns: 'none' is not valid; expected"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    scenario: str, options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    backends = ("--backends", "a=http://127.0.0.1:1")
    ended = headless(*backends, *options, folder=tmp_path, scenario=scenario)
    assert ended.code == 2
    assert words in ended.last_error()
    assert not run_dirs(tmp_path)


def test_requests_that_no_server_holds_are_refused(engines: str, tmp_path: Path) -> None:
    for scenario, options, words in (
        ("fragmentation", ("--context", "600"), "lower --context"),
        ("shared_prefix", ("--prefix-tokens", "600"), "lower --prefix-tokens"),
        ("chat_sessions", ("--turns", "60"), "lower --turns"),
    ):
        ended = headless(
            "--backends", engines, *COMMON, *options, folder=tmp_path, scenario=scenario
        )
        assert ended.code == 2, ended.text
        assert words in ended.last_error()
        assert "holds 512 tokens per request" in ended.last_error()


@pytest.mark.parametrize("scenario", ["decompose", "fragmentation"])
def test_a_scenario_that_owns_its_servers_refuses_what_it_cannot_start(
    scenario: str, tmp_path: Path
) -> None:
    command = [sys.executable, f"scenarios/{scenario}.py", "--servers", "nobody"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --servers: 'nobody' is not valid; expected names of")
    assert "Traceback" not in done.stderr
    shown = subprocess.run([*command[:2], "--help"], cwd=ROOT, capture_output=True, text=True)
    assert shown.returncode == 0
    assert "--kv-budget" in shown.stdout
    assert "--scenario-" in shown.stdout
