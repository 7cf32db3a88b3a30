"""The modelled engine's core: nothing is lost, nobody overtakes, costs add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.simulated.core import EngineCore, Sequence
from servers.simulated.model import EngineModel, Layout, StepCost

UNIT = StepCost(base_s=1.0, per_running_s=0.1, per_context_s=0.01, per_prefill_s=0.001)

REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=25
)
MODELS = st.builds(
    EngineModel,
    layout=st.sampled_from(("paged", "contiguous")),
    cost=st.just(UNIT),
    max_num_seqs=st.integers(1, 12),
    max_num_batched_tokens=st.integers(1, 100),
    max_model_len=st.just(90),
    num_blocks=st.integers(1 + 90, 200),
    block_size=st.integers(1, 8),
    kv_budget_bytes=st.integers(90, 900),
    bytes_per_token=st.just(1),
)


def run(model: EngineModel, requests: list[tuple[int, int, int]]) -> EngineCore:
    """Feed (prompt, output, step of arrival) requests; check what holds after every step."""
    core = EngineCore(model)
    coming = sorted(enumerate(requests), key=lambda item: (item[1][2], item[0]))
    tokens: dict[int, int] = {}
    admitted: list[int] = []
    sequences: dict[int, Sequence] = {}
    for step in range(20_000):
        while coming and coming[0][1][2] <= step:
            key, (prompt, output, _) = coming.pop(0)
            sequences[key] = Sequence(key, prompt, output, float(step))
            core.add(sequences[key])
        if core.begin_step(float(step)) is None and not coming:
            break
        for sequence in core.running:
            if sequence.key not in admitted:
                admitted.append(sequence.key)
        check(core)
        for sequence in core.end_step():
            tokens[sequence.key] = tokens.get(sequence.key, 0) + 1
            assert sequence.generated == tokens[sequence.key]
    # each its tokens, exactly
    assert tokens == {key: output for key, (_, output, _) in enumerate(requests)}
    # first come, first served
    assert admitted == [
        key for key, _ in sorted(enumerate(requests), key=lambda item: (item[1][2], item[0]))
    ]
    assert core.free_blocks == model.usable_blocks
    assert core.prompt_tokens == sum(prompt for prompt, _, _ in requests)
    return core


def check(core: EngineCore) -> None:
    model = core.model
    held = sum(sequence.blocks for sequence in core.running)
    assert core.free_blocks >= 0
    assert len(core.running) <= model.seats
    assert sum(sequence.scheduled for sequence in core.running) <= model.max_num_batched_tokens
    assert all(sequence.blocks == 0 for sequence in core.waiting)
    if model.layout == "paged":
        assert held + core.free_blocks == model.usable_blocks
        for sequence in core.running:
            assert sequence.blocks == model.blocks(sequence.computed + sequence.scheduled)


@given(MODELS, REQUESTS)
def test_every_request_gets_its_tokens_and_no_block_is_lost(
    model: EngineModel, requests: list[tuple[int, int, int]]
) -> None:
    """90 usable blocks hold the longest request alone (60 + 30 tokens), so all can end."""
    run(model, requests)


def small(layout: Layout = "paged", **changes: int) -> EngineModel:
    facts = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "max_model_len": 20} | changes
    return EngineModel(layout=layout, cost=UNIT, **facts)  # type: ignore[arg-type]


def started(model: EngineModel, *requests: tuple[int, int]) -> EngineCore:
    core = EngineCore(model)
    for key, (prompt, output) in enumerate(requests):
        core.add(Sequence(key, prompt, output, 0.0))
    return core


def test_the_cost_of_a_step() -> None:
    core = started(small(), (10, 3), (20, 3))
    # 2 run, 30 tokens of context, all of them prefill: 1 + 0.2 + 0.3 + 0.03
    assert core.begin_step(0.0) == pytest.approx(1.53)
    core.end_step()
    # 2 run, context 11 + 21, no prefill: 1 + 0.2 + 0.32
    assert core.begin_step(1.0) == pytest.approx(1.52)


def test_a_prompt_longer_than_the_budget_is_cut() -> None:
    core = started(small(max_num_batched_tokens=8), (20, 2))
    for served in (0, 0, 1, 1):
        core.begin_step(0.0)
        assert len(core.end_step()) == served
    assert not core.has_work


def test_the_youngest_gives_its_blocks_up_and_comes_first_again() -> None:
    """6 usable blocks of 4: three prompts of 8 take them all. At the ninth token each needs
    one more: the third request gives up two. At the thirteenth the second gives up three."""
    core = started(small(num_blocks=7, block_size=4), *[(8, 8)] * 4)
    seen = []
    for step in range(7):
        before = core.preemptions
        core.begin_step(float(step))
        if core.preemptions > before:
            seen.append((step, [s.key for s in core.running], [s.key for s in core.waiting]))
            # what it generated stays with it, its cache does not
            assert (core.waiting[0].generated, core.waiting[0].computed) == (step, 0)
            assert core.blocker() == "kv"
        core.end_step()
    # step 0 computes the prompt, step 1 the ninth token, step 5 the thirteenth
    assert seen == [(1, [0, 1], [2, 3]), (5, [0], [1, 2, 3])]


def test_what_keeps_the_first_waiting_request_out() -> None:
    seats = started(small(max_num_seqs=1), (4, 9), (4, 9))
    seats.begin_step(0.0)
    assert seats.blocker() == "seqs"
    # 2 slots of 20 bytes
    slots = started(small("contiguous", kv_budget_bytes=59, bytes_per_token=1), *[(4, 9)] * 3)
    slots.begin_step(0.0)
    assert (len(slots.running), slots.blocker()) == (2, "kv")
    free = started(small(), (4, 9))
    free.begin_step(0.0)
    assert free.blocker() is None
    free.add(Sequence(9, 4, 9, 0.0))
    # it has only missed the step in progress
    assert free.blocker() is None


def test_a_request_that_leaves_frees_its_memory() -> None:
    core = started(small(num_blocks=7, block_size=4), (8, 8), (8, 8), (8, 8), (8, 8))
    core.begin_step(0.0)
    gone, waiting = core.running[0], core.waiting[-1]
    core.cancel(gone)
    core.cancel(waiting)
    core.cancel(gone)
    # 6 usable, 2 prompts x 2 blocks more keep running, of which one left before
    assert core.free_blocks == 6 - 2 * len(core.running)
    assert gone not in core.end_step()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (small(num_blocks=3, block_size=4), "needs 4 blocks, the pool has 2"),
        (small("contiguous", kv_budget_bytes=19, bytes_per_token=1), "no slot of max_model_len"),
    ],
)
def test_what_could_never_run_is_refused(model: EngineModel, words: str) -> None:
    # 10 + 5 - 1 tokens in blocks of 4
    assert words in str(model.refusal(10, 5))
    assert small().refusal(10, 5) is None
