"""The simulated pool, against arithmetic done by hand."""

from __future__ import annotations

import pytest

from harness.kv.occupancy import POLICIES, Lengths, Occupancy, Policy, Pool, simulate
from harness.kv.reserving import Request, ledger_of
from harness.plan.mix import LogNormal, fit


def found(policy: Policy, requests: list[Lengths], pool: Pool, **more: int) -> Occupancy:
    made = simulate(policy, requests, pool, **more)
    assert made is not None
    return made


def test_one_length_max_reservation() -> None:
    """32 slots of tokens, 16 a request: 2 run. A request of 4 + 4 stores 4, 5, 6, 7 tokens,
    5.5 on average, so 2 x 5.5 = 11 of 32 reserved slots hold tokens.
    """
    got = found("max", [Lengths(4, 4)], Pool(tokens=32, max_model_len=16))
    assert (got.held, got.stored_tokens, got.reserved_tokens) == (2, 11, 32)
    assert got.share == got.pool_share == 11 / 32


def test_one_length_exact_reservation() -> None:
    """8 of 32 each: 4 run, 22 of 32."""
    got = found("exact", [Lengths(4, 4)], Pool(tokens=32, max_model_len=16))
    assert (got.held, got.share) == (4, 22 / 32)


def test_a_power_of_two_wastes_what_lies_between() -> None:
    """4 + 5 = 9 becomes 16: 2 of 35 run, and store 4 ... 8, 6 on average: 12 of 32 reserved,
    12 of the 35 slots of the pool.
    """
    got = found("pow2", [Lengths(4, 5)], Pool(tokens=35, max_model_len=20))
    assert (got.held, got.share, got.pool_share) == (2, 12 / 32, 12 / 35)


def test_free_pieces_that_are_too_short_are_of_no_use() -> None:
    """4, 2 and 4 of 10 tokens. Without the first and the last 8 are free, in pieces of 4."""
    ledger = ledger_of("exact", Pool(tokens=10, max_model_len=10))
    a, b, c = (Request(Lengths(1, tokens - 1)) for tokens in (4, 2, 4))
    assert all(map(ledger.admit, (a, b, c)))
    assert ledger.reserved == 10
    ledger.release(a)
    ledger.release(c)
    assert ledger.reserved == 2
    assert not ledger.admit(Request(Lengths(4, 1)))
    # the first piece that is long enough
    assert ledger.admit(Request(Lengths(2, 1)))
    assert ledger.admit(Request(Lengths(3, 1)))
    assert not ledger.admit(Request(Lengths(1, 1)))
    assert ledger.admit(Request(Lengths(1, 0)))
    assert ledger.reserved == 10


def test_a_power_of_two_is_never_above_the_longest_context() -> None:
    """10 + 8 would be 32, the longest context is 20."""
    got = found("pow2", [Lengths(10, 8)], Pool(tokens=40, max_model_len=20))
    assert (got.held, got.reserved_tokens) == (2, 40)


def test_paged_takes_blocks_as_tokens_come() -> None:
    """Blocks of 4, one request at once: 4, 5, 6, 7, 8 tokens in 1, 2, 2, 2, 2 blocks:
    30 tokens in 9 blocks of 4 slots.
    """
    pool = Pool(tokens=16, max_model_len=16, block_size=4)
    got = found("paged", [Lengths(4, 5)], pool, users=1)
    assert (got.held, got.stored_tokens, got.reserved_tokens) == (1, 30 / 5, 36 / 5)
    assert got.share == pytest.approx(30 / 36)


def test_the_null_block_is_nobodys() -> None:
    assert Pool(tokens=17, max_model_len=16, block_size=4).usable_blocks == 3


def test_the_youngest_makes_room_and_all_get_through() -> None:
    """3 usable blocks of 4: two requests of 4 + 5 start in one block each, and both want a
    second one for their fifth token; one gets it, the younger one has to begin anew.
    """
    pool = Pool(tokens=16, max_model_len=16, block_size=4)
    got = found("paged", [Lengths(4, 5)] * 10, pool)
    assert got.preemptions > 0
    assert got.finished >= 10
    # never more than 3 blocks
    assert got.reserved_tokens <= 12


def test_a_padded_batch_is_as_wide_as_its_longest() -> None:
    """2 + 2 and 6 + 2 run together: 2 x 8 of 16 reserved. A third would make it 24."""
    got = found("padded", [Lengths(2, 2), Lengths(6, 2)], Pool(tokens=16, max_model_len=16))
    assert (got.held, got.reserved_tokens) == (2, 16)
    # 2, 3 and 6, 7 tokens: 4.5 each on average
    assert got.stored_tokens == 9


def test_no_more_run_than_seats_or_users() -> None:
    pool = Pool(tokens=1000, max_model_len=16, max_num_seqs=3)
    assert found("exact", [Lengths(4, 4)], pool).held == 3
    assert found("exact", [Lengths(4, 4)], pool, users=2).held == 2


def test_a_one_token_answer_stores_its_prompt() -> None:
    got = found("exact", [Lengths(7, 1)], Pool(tokens=16, max_model_len=16))
    assert (got.held, got.share) == (2, 14 / 16)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_can_never_run_has_no_prediction(policy: Policy) -> None:
    assert simulate(policy, [Lengths(4, 4), Lengths(20, 1)], Pool(64, max_model_len=16)) is None
    assert simulate(policy, [Lengths(9, 7)], Pool(15, max_model_len=16)) is None
    assert simulate(policy, [], Pool(64, max_model_len=16)) is None


def test_the_order_of_the_paper() -> None:
    """max < pow2 < exact < paged, in tokens that the pool holds and in requests, for lengths as
    a service has them: the paper's figure 2 has 20.4, 26.8, 38.2 and 96.3 %.
    """
    rows = fit(LogNormal(192, 0.9, 96, 0.7).rows(400, seed=0), 2048, "clip").rows
    requests = [Lengths(row.prompt_tokens, row.output_tokens) for row in rows]
    pool = Pool(tokens=16_384, max_model_len=2048, block_size=16)
    order: tuple[Policy, ...] = ("max", "pow2", "exact", "paged")
    made = [found(policy, requests, pool) for policy in order]
    shares = [item.share for item in made]
    assert shares == sorted(shares)  # type: ignore[type-var]
    assert [item.held for item in made] == sorted(item.held for item in made)
    assert shares[0] is not None and shares[0] < 0.25
    assert shares[-1] is not None and shares[-1] > 0.93


def test_it_is_the_same_every_time() -> None:
    requests = [Lengths(n % 37 + 1, n % 11 + 1) for n in range(100)]
    pool = Pool(tokens=400, max_model_len=64, block_size=8)
    assert simulate("paged", requests, pool) == simulate("paged", requests, pool)
