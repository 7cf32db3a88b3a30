"""The options of matrices and soaks."""

from __future__ import annotations

import pytest

from harness.errors import OptionError, UsageError
from harness.load.options import default_texts, scenario_help, text_options
from harness.load.settings import LoadSettings, read_settings
from harness.workload import MatrixLimits
from tests.load.test_settings import DEFAULTS


def matrix(**options: object) -> LoadSettings:
    basis = {**DEFAULTS, **default_texts("matrix"), "plan_only": False}
    return read_settings("matrix", {**basis, **options}, "matrix")


def soak(**options: object) -> LoadSettings:
    basis = {**DEFAULTS, **default_texts("soak"), "run_time": 600}
    return read_settings("soak", {**basis, **options}, "soak")


def test_the_defaults_of_a_matrix_are_the_whole_of_it() -> None:
    found = matrix()
    shapes = found.workload.shapes
    assert shapes is not None
    # 4 prompts x 3 outputs
    assert (len(shapes), shapes[0], shapes[-1]) == (12, (128, 32), (8192, 512))
    assert found.workload.levels == (1, 4, 16, 32)
    # of the longest request, for what knows one length only
    assert (found.workload.prompt_tokens, found.workload.output_tokens) == (8192, 512)
    assert (found.longest, found.shortest, found.must_fit) == ((8192, 512), (128, 32), (128, 32))
    assert found.matrix is not None
    assert found.matrix.limits == MatrixLimits(budget_s=None, skip_beyond_budget=False)
    assert found.goes_on


def test_limits_of_a_matrix() -> None:
    found = matrix(budget_minutes="1.5", beyond_kv_budget="skip", plan_only=True).matrix
    assert found is not None
    assert found.limits == MatrixLimits(budget_s=90.0, skip_beyond_budget=True)
    assert found.plan_only


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt_tokens": "128,128"}, "--prompt-tokens: '128,128' is not valid; expected rising"),
        ({"output_tokens": "a"}, "--output-tokens"),
        ({"prompt_tokens": "0"}, "--prompt-tokens"),
        ({"budget_minutes": "0"}, "--budget-minutes"),
        ({"beyond_kv_budget": "no"}, "--beyond-kv-budget: 'no' is not valid; expected run or skip"),
        ({"endpoint": "chat"}, "--endpoint: 'chat' is not valid; expected completions"),
    ],
)
def test_what_a_matrix_refuses(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words.replace("(", r"\(")):
        matrix(**options)


def test_a_soak_divides_its_time_into_stretches_with_pauses() -> None:
    """600 s / 20 = 30 s of load and 4 s of pause: 17 stretches, of 600 / 17 - 4 s of load."""
    work = soak().workload
    assert work.soak is not None
    assert (work.repeats, work.levels, work.soak.rest_s) == (17, (8.0,), 4.0)
    assert work.min_level_s == pytest.approx(600 / 17 - 4)
    assert work.soak.cancel_share == 0.1
    assert work.soak.max_latency_growth == 0.1
    unjudged = soak(max_latency_growth="").workload.soak
    assert unjudged is not None
    assert unjudged.max_latency_growth is None
    assert work.soak.max_memory_growth_bytes == 64 * 2**20


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"run_time": None}, "--run-time: none given"),
        ({"levels": "1,4"}, "--levels: '1,4' is not valid; expected one level"),
        ({"run_time": 60}, "--cycle-seconds: '20' is not valid; expected seconds that"),
        ({"cancel_share": "0.95"}, "--cancel-share"),
        ({"cancel_share": "x"}, "--cancel-share"),
        ({"rest_seconds": "2.9"}, "--rest-seconds"),
        ({"rest_seconds": "31"}, "--rest-seconds"),
        ({"max_latency_growth": "0"}, "--max-latency-growth"),
        ({"max_memory_growth": "much"}, "--max-memory-growth"),
    ],
)
def test_what_a_soak_refuses(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        soak(**options)


def test_each_kind_lists_its_own_options() -> None:
    assert "--budget-minutes" in scenario_help("matrix")
    assert "--resume RUN_DIR" in scenario_help("matrix")
    assert "--cancel-share" in scenario_help("soak")
    assert "--run-time" in scenario_help("soak")
    assert "resume" not in scenario_help("levels")
    assert not {"repeats", "min-requests"} & set(text_options("soak"))
