"""What is set aside, where it lies, and who waits for a piece; the sums are done by hand."""

from __future__ import annotations

import random

import pytest

from harness.kv.capacity import predicted_capacity
from harness.kv.modes import mode_name
from harness.manifest import BackendInfo
from servers.contiguous.admission import Admission, FreeSpace, Promise, StaticPolicy
from servers.contiguous.errors import QueueFullError
from servers.contiguous.reserving import ArenaPolicy, RectanglePolicy, Reserve, reserved_tokens

#: bytes of one token
EACH = 1024


def arena(tokens: int, reserve: Reserve = "exact", max_num_seqs: int = 256) -> ArenaPolicy:
    return ArenaPolicy(tokens, EACH, max_num_seqs, 2048, reserve)


def rectangle(tokens: int, reserve: Reserve | None, batch_size: int = 8) -> RectanglePolicy:
    return RectanglePolicy(tokens * EACH, EACH, batch_size, 2048, reserve)


def queue_of(policy: ArenaPolicy | RectanglePolicy, *lengths: int) -> Admission[str]:
    """A queue of requests a, b, c, ... that promise so many tokens."""
    queue = Admission[str](policy, 256)
    for name, tokens in zip("abcdefgh", lengths, strict=False):
        queue.enqueue(name, Promise(tokens - 1, 1))
    return queue


def admit_all(queue: Admission[str]) -> list[str]:
    admitted = []
    while (item := queue.admit()) is not None:
        admitted.append(item)
    return admitted


@pytest.mark.parametrize(
    ("tokens", "exact", "pow2", "longest"),
    [
        (640, 640, 1024, 1500),
        (512, 512, 512, 1500),
        (513, 513, 1024, 1500),
        (1, 1, 1, 1500),
        # 2,048 would be more than a request can ever hold
        (1025, 1025, 1500, 1500),
        (1500, 1500, 1500, 1500),
    ],
)
def test_reserved_tokens(tokens: int, exact: int, pow2: int, longest: int) -> None:
    reserves: tuple[Reserve, ...] = ("exact", "pow2", "max")
    assert [reserved_tokens(reserve, tokens, 1500) for reserve in reserves] == [
        exact,
        pow2,
        longest,
    ]


@pytest.mark.parametrize(("reserve", "requests"), [("exact", 25), ("pow2", 16), ("max", 8)])
def test_requests_of_640_tokens_in_16384(reserve: Reserve, requests: int) -> None:
    """16,384 / 640 = 25.6; 16,384 / 1,024 = 16; 16,384 / 2,048 = 8."""
    queue = Admission[str](arena(16_384, reserve), 256)
    for index in range(32):
        queue.enqueue(f"r{index}", Promise(512, 128))
    assert len(admit_all(queue)) == requests
    region = reserved_tokens(reserve, 640, 2048)
    assert queue.reserved_bytes == requests * region * EACH
    left = (16_384 - requests * region) * EACH
    assert queue.free_space == FreeSpace(left, left)
    assert (queue.waiting_for_kv, queue.waiting_for_region) == (32 - requests, 0)


def test_f123_a_request_waits_although_the_free_bytes_would_do() -> None:
    """a [0, 40), b [40, 60), c [60, 100): with a and c gone 80 tokens are free, in two
    pieces of 40, and d wants 50."""
    queue = queue_of(arena(100), 40, 20, 40, 50)
    assert admit_all(queue) == ["a", "b", "c"]
    # nothing is free: d waits for bytes, not for a piece
    assert (queue.waiting_for_kv, queue.waiting_for_region) == (1, 0)
    queue.release("a")
    # 40 < 50
    assert (queue.waiting_for_kv, queue.waiting_for_region) == (1, 0)
    queue.release("c")
    assert queue.admit() is None
    assert queue.free_space == FreeSpace(80 * EACH, 40 * EACH)
    assert (queue.waiting_for_kv, queue.waiting_for_region) == (1, 1)
    queue.release("b")
    assert queue.admit() == "d"
    assert queue.start_of("d") == 0


def test_the_first_piece_that_is_long_enough_is_taken() -> None:
    """Gaps of 10 at 0 and of 30 at 50: 20 goes to 50, then 10 to 0, then 10 to 70."""
    queue = queue_of(arena(100), 10, 40, 30, 20, 20, 10, 10)
    assert [queue.admit() for _ in range(4)] == ["a", "b", "c", "d"]
    assert [queue.start_of(name) for name in "abcd"] == [0, 10, 50, 80]
    queue.release("a")
    queue.release("c")
    assert admit_all(queue) == ["e", "f", "g"]
    assert [queue.start_of(name) for name in "efg"] == [50, 0, 70]


def test_nobody_overtakes_one_that_waits_for_a_piece() -> None:
    queue = queue_of(arena(100), 60, 50, 10)
    assert admit_all(queue) == ["a"]
    # c alone would fit
    assert (queue.waiting, queue.waiting_for_kv) == (2, 2)
    queue.release("a")
    assert admit_all(queue) == ["b", "c"]


def test_a_region_longer_than_the_arena_is_refused() -> None:
    """1,000 tokens round up to 1,024, and the arena has 1,000."""
    assert arena(1000).refusal(Promise(999, 1)) is None
    text = arena(1000, "pow2").refusal(Promise(999, 1))
    assert text is not None
    assert "1024 tokens x 1024 B" in text


def test_max_num_seqs_is_no_lack_of_a_region() -> None:
    queue = queue_of(arena(100, max_num_seqs=1), 10, 10)
    assert admit_all(queue) == ["a"]
    assert (queue.waiting, queue.waiting_for_kv, queue.waiting_for_region) == (1, 0, 0)


@pytest.mark.parametrize("reserve", ["exact", "pow2"])
def test_regions_never_overlap(reserve: Reserve) -> None:
    """2,000 comings and goings of 1 to 300 tokens, seeded."""
    chance = random.Random(7)
    policy = arena(1000, reserve)
    queue = Admission[int](policy, 10**6)
    lengths: dict[int, int] = {}
    running: set[int] = set()
    for number in range(2000):
        lengths[number] = chance.randint(1, 300)
        queue.enqueue(number, Promise(lengths[number], 0))
        while (item := queue.admit()) is not None:
            running.add(item)
        taken = [
            token
            for item in running
            for token in range(
                queue.start_of(item),
                queue.start_of(item) + reserved_tokens(reserve, lengths[item], 2048),
            )
        ]
        assert len(taken) == len(set(taken)) == queue.reserved_bytes // EACH
        assert max(taken) < 1000
        space = queue.free_space
        assert space is not None
        assert space.total_bytes + queue.reserved_bytes == 1000 * EACH
        leaving = chance.choice(sorted(running))
        running.remove(leaving)
        queue.release(leaving)


def test_f127_the_queue_before_an_arena_is_bounded() -> None:
    queue = Admission[str](arena(10), 1)
    queue.enqueue("a", Promise(9, 1))
    assert queue.admit() == "a"
    queue.enqueue("b", Promise(9, 1))
    with pytest.raises(QueueFullError):
        queue.enqueue("c", Promise(9, 1))


@pytest.mark.parametrize(
    ("reserve", "columns"), [(None, 150), ("exact", 150), ("pow2", 256), ("max", 2048)]
)
def test_a_batch_has_the_longest_prompt_and_the_longest_answer(
    reserve: Reserve | None, columns: int
) -> None:
    """100 + 20 and 10 + 50: both prompts end in column 100, so 150 columns."""
    policy = rectangle(10_000, reserve)
    rows = [Promise(100, 20), Promise(10, 50)]
    assert policy.columns(rows) == columns
    assert policy.reserved_bytes(rows) == 2 * columns * EACH
    assert policy.reserved_bytes([]) == 0


def test_a_batch_is_as_large_as_the_budget_holds_of_it_padded() -> None:
    """1,000 tokens: 2 x (300 + 100) = 800 fit, 3 x 400 = 1,200 do not."""
    policy = rectangle(1000, None)
    rows = [Promise(300, 10), Promise(10, 100)]
    assert policy.blocker(rows[:1], rows[1]) is None
    assert policy.blocker(rows, Promise(1, 1)) == "kv"
    assert policy.blocker([], Promise(900, 101)) == "kv"
    assert policy.refusal(Promise(900, 100)) is None
    text = policy.refusal(Promise(900, 101))
    assert text is not None
    assert "1001 tokens x 1024 B" in text


def test_a_batch_has_its_size() -> None:
    policy = rectangle(10_000, None, batch_size=2)
    assert policy.blocker([Promise(1, 1)], Promise(1, 1)) is None
    assert policy.blocker([Promise(1, 1)] * 2, Promise(1, 1)) == "seqs"


def test_padding_must_not_make_a_preallocated_row_longer_than_the_context() -> None:
    """2,000 + 48 and 48 + 2,000 fit 2,048 each; together their rows have 4,000 columns."""
    long_prompt, long_answer = Promise(2000, 48), Promise(48, 2000)
    assert rectangle(100_000, "max").blocker([long_prompt], long_answer) == "kv"
    assert rectangle(100_000, "exact").blocker([long_prompt], long_answer) == "kv"
    assert rectangle(100_000, None).blocker([long_prompt], long_answer) is None


def test_the_pool_of_a_batch() -> None:
    """20 slots of 2,048 fit 40,960 tokens, of which a batch of 8 can use 16,384."""
    assert rectangle(40_960, "max").pool_tokens == 16_384
    assert rectangle(40_960, "max").slots == 8
    assert rectangle(5000, "max").slots == 2
    assert rectangle(5000, "exact").pool_tokens == 5000
    assert rectangle(5000, "exact").slots is None


def test_what_ended_is_kept_until_the_batch_has_ended() -> None:
    queue = queue_of(rectangle(1000, None), 100, 100, 100)
    assert admit_all(queue) == ["a", "b", "c"]
    queue.keep("b")
    # columns 99 + 1, three rows still
    assert (queue.running, queue.reserved_bytes) == (2, 300 * EACH)
    queue.keep("a")
    queue.keep("c")
    assert (queue.running, queue.reserved_bytes) == (0, 300 * EACH)
    queue.release_kept()
    assert queue.reserved_bytes == 0


@pytest.mark.parametrize("reserve", ["exact", "pow2", "max"])
def test_the_harness_predicts_what_is_admitted(reserve: Reserve) -> None:
    """640 tokens, and 1,025, for which 2,048 is max_model_len and the next power of two."""
    for prompt, output in ((512, 128), (1000, 25), (2000, 48), (1, 1)):
        policy: ArenaPolicy | StaticPolicy = arena(16_400, reserve)
        if reserve == "max":
            policy = StaticPolicy(16_400 // 2048, 256, 2048 * EACH)
        queue = Admission[int](policy, 10**6)
        for number in range(300):
            queue.enqueue(number, Promise(prompt, output))
        admitted = 0
        while queue.admit() is not None:
            admitted += 1
        info = BackendInfo(
            name="contiguous",
            url="http://127.0.0.1:8001",
            kind="contiguous",
            mode=mode_name("static", reserve, "continuous"),
            model="tiny",
            max_model_len=2048,
            max_num_seqs=256,
            kv_budget_bytes=16_400 * EACH,
            kv_bytes_per_token=EACH,
        )
        predicted = predicted_capacity(info, prompt, output)
        assert predicted is not None
        assert predicted.requests == admitted
