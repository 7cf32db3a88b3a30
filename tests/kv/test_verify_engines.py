"""Our KV figures against those of a real vLLM on the CPU, model by model."""

from __future__ import annotations

import pytest

from tests.kv.engine_cases import CASES, Case
from tests.kv.engine_runs import agrees, run_case


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_vllm_states_the_same_pool(case: Case) -> None:
    theirs = run_case(case)
    ours = case.ours()
    assert agrees(ours, theirs), (ours, theirs)


def test_every_kind_that_was_asked_for_is_there() -> None:
    assert len(CASES) >= 6
    assert all(case.ours().num_blocks for case in CASES)
