from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.cli_suite import runnable_suite
from harness.errors import UsageError
from harness.kv.capacity import paged_capacity, static_capacity
from harness.nightly.gate_types import GateLimits
from harness.nightly.suite import read_suite

SUITE = Path(__file__).parents[2] / "scenarios" / "nightly.toml"


def test_the_suite_of_the_repository_is_read() -> None:
    suite = read_suite(SUITE)
    assert len(suite.gate.primary) == 8
    # what it spells out are the gate's own limits
    assert suite.limits == GateLimits()
    assert (SUITE.parent / f"{suite.run[0].scenario}.py").is_file()


def test_the_suite_for_a_gpu_has_its_knee_among_its_levels() -> None:
    suite = runnable_suite(SUITE.with_name("nightly-gpu.toml"))
    (run,) = suite.run
    # as its head says
    per_token, budget = 28 * 2 * 128 * 2 * 2, 4 * 2**30
    assert run.kv_budget_bytes == budget

    def slots(kv_budget_bytes: int) -> int:
        return static_capacity(
            kv_budget_bytes=kv_budget_bytes, bytes_per_token=per_token, max_model_len=2048
        ).requests

    paged = paged_capacity(
        num_blocks=budget // (16 * per_token),
        block_size=16,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
    )
    assert (slots(budget), slots(budget // 2), paged.requests) == (73, 36, 234)
    low, middle, high = run.levels
    assert low <= slots(budget // 2) < middle <= slots(budget) < high <= paged.requests


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("min_nights = 5", "min_night = 5", "unknown field `min_night`"),
        ("min_nights = 5", "min_nights = 91", "min_nights is larger"),
        ('kv_budget = "16MiB"', 'kv_budget = "24G"', "run short: kv_budget: '24G' is not valid"),
        ("false_alarm_rate = 0.01", "false_alarm_rate = 2", "$.gate.false_alarm_rate"),
        ("baseline_nights = 90", "max_gated = 7", "8 primary series; at most 7 are gated"),
        (
            'level = 16, metric = "out',
            'level = 7, metric = "out',
            "level 7; expected one of 4, 8, 16",
        ),
        ('scenario = "concurrency"', 'scenario = "knee"', "expected one of concurrency, open_loop"),
        ("min-requests", "levels", "run short: options levels are the job's own"),
        ("min-requests", "Min", "`key` in `$.run[0].options`"),
        ("[4, 8, 16]", "[4, 16, 16]", "run short: a level stands twice"),
        ('"tpot_p50_s"', '"tpot"', "no such metric; expected one of ttft_p50_s"),
        ('run = "short", backend = "paged", l', 'run = "x", backend = "paged", l', "no such run"),
        ('backends = ["paged", ', 'backends = ["pagd", ', "no such backend"),
        ("[gate]", "[gate", "line"),
        ("[gate]", "[compose]\nfiles = []\n[gate]", "`$.compose.files`"),
        ("[gate]", '[compose]\nfile = "x"\n[gate]', "expected one of files"),
        ("[gate]", '[compose]\nfiles = ["no\\u0000ne.yml"]\n[gate]', "ne.yml is no file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = SUITE.read_text()
    assert old in text
    path = tmp_path / "nightly.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_suite(path)
    assert expected in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_with_compose_a_model_is_named_as_the_containers_see_it(tmp_path: Path) -> None:
    (tmp_path / "stack.yml").write_text("services: {}\n")
    text = SUITE.read_text() + '\n[compose]\nfiles = ["stack.yml"]\n'
    path = tmp_path / "nightly.toml"
    path.write_text(text.replace('model = "tiny"', 'model = "/srv/models/mine"'))
    with pytest.raises(UsageError, match=r"model /srv/models/mine: with \[compose\] it is tiny"):
        read_suite(path)


def test_a_gate_that_could_never_fail_is_refused(tmp_path: Path) -> None:
    text = SUITE.read_text()
    path = tmp_path / "nightly.toml"
    path.write_text(text[: text.index("primary = [")] + "primary = []\n")
    with pytest.raises(UsageError, match="primary is empty, so no night could ever fail"):
        read_suite(path)


def test_a_missing_suite_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_suite(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("min_nights = 5", "min_night = 5", "`$.gate`; expected one of min_nights"),
        ("repeats = 5", "repeat = 5", "`$.run[0]`; expected one of repeats"),
        ("days = 90", "weeks = 9", "expected one of days, runs"),
        ('suite = "cpu-short"', 'suite = "a\\n"', "letters, digits, '_', '.' and '-' alone"),
        ('model = "tiny"', 'model = "a\\u0000b"', r"model 'a\x00b' has control characters"),
        ('model = "tiny"', 'model = " "', "model is empty"),
        ("repeats = 5", f"repeats = {'9' * 5000}", "thousands of digits"),
        ("repeats = 5", f"repeats = {'[' * 5000}", "nested too deep"),
        ('metric = "memory_knee"', f'metric = "{"m" * 9999}"', "no such metric"),
        # the load takes shortened names and Locust's own options, and ends at once
        (
            "min-requests",
            "min-request",
            "no option min-request of concurrency; expected one of min-",
        ),
        ("min-requests", "api-ke", "no option api-ke"),
        ("min-requests", "help", "no option help"),
        ('min-requests = "48"', 'min-requests = "many"', "--min-requests: 'many' is not valid"),
        (
            'backends = ["paged"',
            'backends = ["päged", "paged"',
            "is not valid; expected a backend's name",
        ),
    ],
)
def test_what_would_be_right_is_said_in_one_short_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    text = SUITE.read_text()
    assert old in text
    path = tmp_path / "nightly.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        runnable_suite(path)
    said = str(caught.value)
    assert expected in said and said.isprintable()
    assert len(said) < len(str(path)) + 620


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    pipe, binary, large = tmp_path / "pipe", tmp_path / "binary", tmp_path / "large"
    os.mkfifo(pipe)
    binary.write_bytes(SUITE.read_bytes() + b"# \xff")
    large.write_bytes(SUITE.read_bytes() + b"#" * 2**20)
    for path, expected in ((pipe, "no file"), (binary, "no UTF-8 at byte"), (large, "larger")):
        with pytest.raises(UsageError, match=expected):
            read_suite(path)


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "nightly.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SUITE.read_bytes().replace(b"\n", b"\r\n"))
    assert read_suite(path) == read_suite(SUITE)
