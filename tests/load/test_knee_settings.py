"""The options of a knee search."""

from __future__ import annotations

import re

import pytest

from harness.errors import OptionError, UsageError
from harness.load.knee_settings import require_goal
from harness.load.options import default_texts, scenario_help, text_options
from harness.load.settings import LoadSettings, read_settings
from harness.workload import KneeAsk, OpenLoop
from tests.load.test_settings import DEFAULTS


def knee(**options: object) -> LoadSettings:
    basis = {**DEFAULTS, **default_texts("knee"), "verify": True}
    return read_settings("knee", {**basis, **options}, "knee")


def test_by_default_it_looks_for_requests_at_once_up_to_512() -> None:
    work = knee().workload
    assert work.search == KneeAsk(attainment=0.95, budget_s=None, verify=True)
    assert (work.loop, work.levels, work.min_requests, work.max_level_s) == (
        "closed",
        (512.0,),
        (20,),
        120.0,
    )
    assert (work.prompt_tokens, work.output_tokens) == (512, 128)


def test_all_that_can_be_asked() -> None:
    found = knee(
        attainment="0.9",
        budget_minutes="1.5",
        max_concurrency="64",
        min_requests="50",
        max_level_seconds="30",
        verify=False,
    ).workload
    assert found.search == KneeAsk(attainment=0.9, budget_s=90.0, verify=False)
    assert (found.levels, found.min_requests, found.max_level_s) == ((64.0,), (50,), 30.0)


def test_a_rate_is_looked_for_with_an_open_loop() -> None:
    found = knee(loop="open", max_request_rate="12.5", max_concurrency="300").workload
    assert (found.loop, found.levels) == ("open", (12.5,))
    assert found.open_loop == OpenLoop(burstiness=1.0, max_concurrency=300, warmup_s=5.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loop": "round"}, "--loop: 'round' is not valid; expected closed or open"),
        ({"attainment": "1"}, "--attainment: '1' is not valid; expected a share"),
        ({"attainment": "95"}, "--attainment"),
        ({"attainment": "0.4"}, "--attainment"),
        ({"max_concurrency": "0"}, "--max-concurrency"),
        ({"budget_minutes": "0"}, "--budget-minutes: '0' is not valid; expected minutes"),
        ({"min_requests": "4"}, "--min-requests: '4' is not valid; expected a whole number"),
        ({"max_level_seconds": "0"}, "--max-level-seconds"),
        ({"loop": "open", "max_request_rate": "1,2"}, "--max-request-rate: '1,2' is not valid"),
        ({"loop": "open", "burstiness": "0"}, "--burstiness"),
        ({"loop": "open", "warmup_seconds": "120"}, "--warmup-seconds"),
        ({"prompt_tokens": "8,16"}, "--prompt-tokens"),
    ],
)
def test_what_it_refuses(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        knee(**options)


def test_something_must_tell_good_from_bad() -> None:
    require_goal(slo=True, metrics={"a": False})
    require_goal(slo=False, metrics={"a": True})
    with pytest.raises(UsageError, match="--slo: none, and b has no metrics of its queue"):
        require_goal(slo=False, metrics={"a": True, "b": False})


def test_a_search_names_no_levels_and_its_help_has_all_options() -> None:
    names = set(text_options("knee"))
    assert not names & {"levels", "repeats", "min-level-seconds", "ramp-up-seconds"}
    text = scenario_help("knee")
    assert all(f"--{name} " in text for name in names)
    assert "--no-verify" in text
