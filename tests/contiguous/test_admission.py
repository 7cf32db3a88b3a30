"""First come first served within a budget; the sums are done by hand."""

from __future__ import annotations

import pytest

from servers.contiguous.admission import Admission, DynamicPolicy, Promise, StaticPolicy
from servers.contiguous.errors import QueueFullError

MIB = 2**20
#: 1 KiB per token: a 16 MiB budget is 16,384 tokens
PER_TOKEN = 1024


def dynamic(max_num_seqs: int = 256) -> DynamicPolicy:
    return DynamicPolicy(16 * MIB, PER_TOKEN, max_num_seqs)


def static(kv_slots: int, max_num_seqs: int = 256) -> StaticPolicy:
    return StaticPolicy(kv_slots, max_num_seqs, 2048 * PER_TOKEN)


def tokens(number: int) -> Promise:
    """The policies here look at the sum only."""
    return Promise(number - 1, 1)


def admit_all(queue: Admission[str]) -> list[str]:
    admitted = []
    while (item := queue.admit()) is not None:
        admitted.append(item)
    return admitted


def test_dynamic_holds_25_requests_of_640_tokens() -> None:
    """16,384 / 640 = 25.6."""
    queue = Admission[str](dynamic(), 256)
    for index in range(32):
        queue.enqueue(f"r{index}", tokens(640))
    assert len(admit_all(queue)) == 25
    assert (queue.running, queue.waiting, queue.waiting_for_kv) == (25, 7, 7)
    assert queue.reserved_bytes == 25 * 640 * PER_TOKEN


def test_padding_counts_against_the_budget() -> None:
    """8,000 + 3 x 2,000 = 14,000 tokens are promised, but padded to 8,000 two rows fill it:
    2 x 8,000 = 16,000 and 3 x 8,000 = 24,000 > 16,384. What is charged is what is reserved.
    """
    queue = Admission[str](dynamic(), 256)
    queue.enqueue("long", tokens(8000))
    for index in range(3):
        queue.enqueue(f"short{index}", tokens(2000))
    assert admit_all(queue) == ["long", "short0"]
    assert queue.reserved_bytes == 16_000 * PER_TOKEN
    queue.release("long")
    assert admit_all(queue) == ["short1", "short2"]
    assert queue.reserved_bytes == 3 * 2000 * PER_TOKEN


def test_exactly_the_budget_fits() -> None:
    queue = Admission[str](dynamic(), 256)
    queue.enqueue("all", tokens(16_384))
    assert queue.admit() == "all"
    assert dynamic().refusal(tokens(16_384)) is None


def test_a_request_that_can_never_fit_is_told_the_arithmetic() -> None:
    """16,385 x 1,024 = 16,778,240."""
    text = dynamic().refusal(tokens(16_385))
    assert text is not None
    assert "16385 tokens x 1024 B" in text
    assert "16778240 B" in text
    assert "16777216 B (16384 tokens)" in text


def test_static_reserves_whole_slots() -> None:
    queue = Admission[str](static(8), 256)
    for index in range(10):
        queue.enqueue(f"r{index}", tokens(5))
    assert len(admit_all(queue)) == 8
    assert queue.reserved_bytes == 8 * 2048 * 1024
    assert queue.waiting_for_kv == 2


def test_max_num_seqs_is_no_lack_of_kv() -> None:
    queue = Admission[str](static(8, max_num_seqs=4), 256)
    for index in range(10):
        queue.enqueue(f"r{index}", tokens(5))
    assert len(admit_all(queue)) == 4
    assert (queue.waiting, queue.waiting_for_kv) == (6, 0)


def test_waiting_for_a_turn_is_no_lack_of_kv() -> None:
    """10 in the queue and nobody running yet: 8 have room, 2 wait for KV."""
    queue = Admission[str](static(8), 256)
    for index in range(10):
        queue.enqueue(f"r{index}", tokens(5))
    assert (queue.waiting, queue.waiting_for_kv) == (10, 2)


def test_nobody_overtakes_a_blocked_head() -> None:
    queue = Admission[str](dynamic(), 256)
    queue.enqueue("first", tokens(10_000))
    assert queue.admit() == "first"
    queue.enqueue("big", tokens(10_000))
    queue.enqueue("small", tokens(1))
    assert queue.admit() is None
    assert queue.waiting_for_kv == 2
    queue.release("first")
    assert admit_all(queue) == ["big"]


def test_f127_the_queue_is_bounded() -> None:
    """1 slot and 2 waiting: the fourth is refused, with a time to come back."""
    queue = Admission[str](static(1), 2)
    for name in ("a", "b", "c"):
        queue.enqueue(name, tokens(5))
    with pytest.raises(QueueFullError) as refused:
        queue.enqueue("d", tokens(5))
    assert refused.value.status == 503
    assert refused.value.retry_after_s >= 1
    assert queue.admit() == "a"
    with pytest.raises(QueueFullError):
        queue.enqueue("e", tokens(5))
    queue.release("a")
    queue.enqueue("f", tokens(5))
    assert queue.waiting == 3, "one of them has room and only waits for its turn"


def test_withdraw() -> None:
    queue = Admission[str](static(1), 8)
    for name in ("a", "b", "c"):
        queue.enqueue(name, tokens(5))
    assert queue.withdraw("b")
    assert not queue.withdraw("b")
    assert queue.admit() == "a"
    assert not queue.withdraw("a")
    queue.release("a")
    assert queue.admit() == "c"


def test_drain() -> None:
    queue = Admission[str](static(1), 8)
    for name in ("a", "b"):
        queue.enqueue(name, tokens(5))
    assert queue.drain() == ["a", "b"]
    assert queue.waiting == 0
