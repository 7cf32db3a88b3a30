"""The options of open loops: what is taken, and one clear line for what is not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.errors import OptionError, UsageError
from harness.load.options import scenario_help, text_options
from harness.load.settings import LoadSettings, read_settings
from harness.load.workload import AskKind
from harness.plan.fingerprint import workload_hash
from harness.workload import OpenLoop, Ramp
from tests.load.test_settings import DEFAULTS

TRACE = "arrival_s,prompt_tokens,output_tokens\n0,8,4\n1,600,5\n4,9,3\n"


def settings(kind: AskKind, **options: object) -> LoadSettings:
    own = {name.replace("-", "_"): item[0] for name, item in text_options(kind).items()}
    return read_settings("s", {**DEFAULTS, **own, **options}, kind)


def replayed(tmp_path: Path, content: bytes | str = TRACE, **options: object) -> LoadSettings:
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return settings("trace", trace=str(path), **options)


def test_the_defaults_of_rates() -> None:
    found = settings("rate")
    assert found.workload.levels == (1, 2, 4)
    assert found.workload.open_loop == OpenLoop(burstiness=1.0, warmup_s=5.0)
    assert found.longest == (512, 128)
    assert found.replay is None


def test_rates_are_read() -> None:
    found = settings(
        "rate", request_rate="0.5, 2.25", burstiness="inf", max_concurrency="8", warmup_seconds="0"
    )
    assert found.workload.levels == (0.5, 2.25)
    assert found.workload.open_loop == OpenLoop(burstiness=None, max_concurrency=8)


def test_a_ramp_is_read() -> None:
    found = settings(
        "rate",
        ramp_up_strategy="exponential",
        ramp_up_start_rps="1",
        ramp_up_end_rps="30",
        ramp_up_seconds="20",
    )
    assert found.workload.levels == (30,)
    asked = found.workload.open_loop
    assert asked is not None
    assert asked.ramp == Ramp(strategy="exponential", start_rps=1, end_rps=30, seconds=20)


RAMP = {"ramp_up_strategy": "linear", "ramp_up_start_rps": "1", "ramp_up_end_rps": "9"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"request_rate": "0"}, "--request-rate: '0' is not valid; expected rising requests"),
        ({"request_rate": "-1"}, "--request-rate: '-1'"),
        ({"request_rate": "abc"}, "--request-rate: 'abc'"),
        ({"request_rate": "inf"}, "--request-rate: 'inf'"),
        ({"request_rate": ""}, "--request-rate: ''"),
        ({"request_rate": "2,1"}, "--request-rate: '2,1'"),
        ({"request_rate": "1e3"}, "--request-rate: '1e3'"),
        ({"burstiness": "0"}, "--burstiness: '0' is not valid; expected a number, 0.01 or more"),
        ({"burstiness": "-1"}, "--burstiness: '-1'"),
        ({"burstiness": "nan"}, "--burstiness: 'nan'"),
        ({"max_concurrency": "0"}, "--max-concurrency: '0'"),
        ({"warmup_seconds": "120"}, "--warmup-seconds: '120' is not valid; expected seconds that"),
        ({"warmup_seconds": "x"}, "--warmup-seconds: 'x'"),
        (
            {"ramp_up_strategy": "steep"},
            "--ramp-up-strategy: 'steep' is not valid; expected linear",
        ),
        ({"ramp_up_end_rps": "9"}, "--ramp-up-strategy: '' is not valid; expected linear or"),
        ({"ramp_up_strategy": "linear"}, "--ramp-up-start-rps: '' is not valid"),
        ({**RAMP, "ramp_up_end_rps": "0"}, "--ramp-up-end-rps: '0' is not valid"),
        ({**RAMP, "request_rate": "5"}, "--request-rate: '5' is not valid; expected none beside"),
        ({**RAMP, "ramp_up_seconds": "0"}, "--ramp-up-seconds: '0'"),
        ({**RAMP, "warmup_seconds": "60"}, "--warmup-seconds: '60' is not valid; expected less"),
    ],
)
def test_bad_rates_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        settings("rate", **options)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_replay_is_read(tmp_path: Path) -> None:
    """Requests of 0.5 to 4.5 s, half the time: 1 s becomes 0.25, 4 s 1.75, in 2 s."""
    found = replayed(tmp_path, window="0.5:4.5", time_scale="0.5", max_prompt_tokens="100")
    assert found.replay is not None
    assert [row.at_s for row in found.replay.rows] == [0.25, 1.75]
    assert found.longest == (100, 5)
    work = found.workload
    assert (work.levels, work.min_requests, work.max_level_s) == ((1.0,), (2,), 2.0)
    trace = work.open_loop.trace if work.open_loop is not None else None
    assert trace is not None
    assert (trace.name, trace.sha256) == ("t.csv", hashlib.sha256(TRACE.encode()).hexdigest())
    assert (trace.requests, trace.shortened, trace.skipped) == (2, 1, 0)
    assert not work.shares_prefixes


def test_what_is_replayed_is_in_the_fingerprint(tmp_path: Path) -> None:
    plain = workload_hash(replayed(tmp_path).workload)
    assert plain == workload_hash(replayed(tmp_path).workload)
    for options in ({"time_scale": "2"}, {"window": "0:3"}, {"max_concurrency": "3"}):
        assert plain != workload_hash(replayed(tmp_path, **options).workload)
    assert plain != workload_hash(replayed(tmp_path, TRACE.replace("600", "601")).workload)
    assert workload_hash(settings("rate").workload) != workload_hash(
        settings("rate", burstiness="2").workload
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": "3:1"}, "--window: '3:1' is not valid; expected START:END in seconds"),
        ({"window": "3:3"}, "--window: '3:3'"),
        ({"window": "3"}, "--window: '3'"),
        ({"window": "a:b"}, "--window: 'a:b'"),
        ({"window": "9:12"}, "--window: '9:12' is not valid; expected a part with requests: the "),
        ({"time_scale": "0"}, "--time-scale: '0' is not valid; expected a number above 0"),
        ({"time_scale": "-1"}, "--time-scale: '-1'"),
        ({"max_prompt_tokens": "0"}, "--max-prompt-tokens: '0'"),
        ({"max_output_tokens": "x"}, "--max-output-tokens: 'x'"),
        ({"over_length": "cut"}, "--over-length: 'cut' is not valid; expected clip, scale or"),
        ({"max_prompt_tokens": "1", "over_length": "skip"}, "--over-length: skip leaves none of 3"),
        ({"warmup_seconds": "9"}, "--warmup-seconds: '9' is not valid; expected at most 4, the"),
        ({"endpoint": "chat"}, "--endpoint: 'chat' is not valid; expected completions: a trace"),
    ],
)
def test_bad_options_of_a_replay_are_named(
    options: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        replayed(tmp_path, **options)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "t.csv, it is empty"),
        (TRACE.encode() + b"x,1,1\n", "t.csv, line 5: arrival_s is 'x'; expected seconds"),
        (TRACE.encode() + b"\xff,1,1\n", "t.csv, line 5: no UTF-8"),
    ],
)
def test_a_bad_trace_is_named_with_its_line(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        replayed(tmp_path, content)
    assert words in str(caught.value)


def test_no_trace_or_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--trace: none given; expected a trace file"):
        settings("trace")
    with pytest.raises(UsageError, match=r"cannot be read \(Is a directory\)"):
        settings("trace", trace=str(tmp_path))


def test_each_kind_of_scenario_shows_its_own_options() -> None:
    texts = {kind: scenario_help(kind) for kind in ("levels", "rate", "trace")}
    own = {
        "levels": ("--levels ",),
        "rate": ("--request-rate ", "--burstiness ", "--ramp-up-strategy "),
        "trace": ("--trace ", "--time-scale ", "--window ", "--over-length "),
    }
    for kind, text in texts.items():
        for other, names in own.items():
            assert all((name in text) == (kind == other) for name in names), (kind, other)
        assert ("--max-concurrency " in text) == (kind != "levels")
        assert ("--min-requests " in text) == (kind != "trace")
        assert "--slo " in text
