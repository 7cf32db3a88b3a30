"""``locust -f scenarios/soak.py`` end to end, against a modelled server."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.scenarios.locust_process import events_of, headless, records_of, run_dirs
from tests.simulated.support import running
from tests.support.fake_openai import FakeOpenAi, serve

SHORT = (
    *("--levels", "3", "--prompt-tokens", "16", "--output-tokens", "20"),
    # 6 stretches of 1.5 s with pauses of 3 s
    *("--run-time", "27s", "--cycle-seconds", "1.5", "--rest-seconds", "3"),
    *("--cancel-share", "0.3", "--prometheus-url", "none"),
    # so short a run cannot tell a slow drift from noise; the limits are no part of this test
    *("--max-latency-growth", "1000", "--max-memory-growth", "100GiB"),
)


@pytest.mark.slow
def test_streams_are_left_and_every_kv_byte_comes_back(tmp_path: Path) -> None:
    server = ("--mode", "modelled", "--layout", "contiguous", "--max-model-len", "256")
    with running(*server, "--step-base", "2ms") as url:
        ended = headless("--backends", f"sim={url}", *SHORT, folder=tmp_path, scenario="soak")
    assert ended.code == 0, ended.text
    (run,) = run_dirs(tmp_path)
    records = records_of(run)
    outcomes = [record.outcome for record in records]
    assert set(outcomes) == {"ok", "cancelled"}
    # of hundreds of requests three in ten leave: between two and four in ten do
    assert 0.2 < outcomes.count("cancelled") / len(outcomes) < 0.4
    for record in records:
        if record.outcome == "cancelled":
            # tokens that share the last read are there, too
            assert 0 < len(record.token_us) <= 20
            assert not record.done_seen
            assert record.error == "the client closed the stream before its end, as it was to"
    ends = [e.t_s for e in events_of(run) if e.kind == "level_end"]
    starts = [e.t_s for e in events_of(run) if e.kind == "level_start"]
    assert (len(starts), len(ends)) == (6, 6)
    # nothing is sent in the pauses
    assert all(later - end >= 3 for end, later in zip(ends, starts[1:], strict=False))
    soak = msgspec.json.decode((run.path / "summary.json").read_bytes())["soak"]
    (backend,) = soak["backends"]
    assert backend["kv_bytes_left"] == 0
    assert backend["cancelled"] == outcomes.count("cancelled")
    assert {d["name"]: d["state"] for d in backend["drifts"]}["TTFT"] == "steady"
    assert "all KV bytes given back at the end" in " ".join(ended.out.split())
    assert "## Soak" in (run.path / "report.md").read_text()


#: a server that never gives its last block back
KEEPS_A_BLOCK = """\
contiguous_requests_running{model="m"} 0
contiguous_kv_used_bytes{model="m"} 4096
contiguous_kv_reserved_bytes{model="m"} 4096
"""


@pytest.mark.slow
def test_kv_bytes_that_stay_make_exit_code_1(tmp_path: Path) -> None:
    fake = FakeOpenAi(metrics=KEEPS_A_BLOCK, version={"engine": "contiguous", "mode": "static"})
    short = ("--run-time", "21s", "--cycle-seconds", "0.5", "--rest-seconds", "3")
    with serve(fake) as server:
        ended = headless(
            *("--backends", f"a={server.url}", *SHORT, *short), folder=tmp_path, scenario="soak"
        )
    assert ended.code == 1, ended.text
    # nothing failed and the run is whole: the KV bytes alone are the fault
    (run,) = run_dirs(tmp_path)
    assert run.manifest().status == "complete"
    assert "4.00 KiB of KV in use with nothing in flight" in " ".join(ended.out.split())


def test_what_a_soak_needs_is_said_before_it_starts(tmp_path: Path) -> None:
    with serve(FakeOpenAi()) as server:
        backends = ("--backends", f"a={server.url}")
        ended = headless(*backends, folder=tmp_path, scenario="soak")
    assert ended.code == 2
    assert "--run-time: none given; expected how long to soak" in ended.last_error()
    helped = headless("--scenario-help", folder=tmp_path, scenario="soak")
    assert helped.code == 0
    assert "--cancel-share" in helped.text
