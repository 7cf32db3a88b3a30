"""What requests hold at a moment, by the client's records alone."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.holdings import MAX_MOMENTS, Holdings, Moment, Sample, thinned
from harness.analysis.table import build_tables
from harness.records import RequestRecord
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED

CELL = cell_of(PAGED, 2)


def moments(
    records: list[RequestRecord], *samples: Sample, chunk: int | None = 512, started: bool = False
) -> list[Moment]:
    table = build_tables(records)[CELL]
    return list(Holdings(table, chunk, vllm=started).moments(samples))


def test_the_newest_token_is_not_stored_yet() -> None:
    # sent at 10, 512 prompt tokens, tokens at 10.5, 10.6, 10.7
    found = moments(
        [record(CELL)], *(Sample(at, 1.0, 0.0) for at in (10.51, 10.55, 10.65, 10.69, 10.75))
    )
    # one token: prompt alone; two: prompt + 1; after the last one nothing is held, and the
    # server's 1 running is no match
    assert [moment.stored.tolist() for moment in found] == [[512.0], [512.0], [513.0], [513.0]]
    assert [moment.promised.tolist() for moment in found] == [[640.0]] * 4
    assert all(moment.settled for moment in found)


def test_a_sample_counts_only_where_both_sides_count_as_many_requests() -> None:
    records = [record(CELL, 0), record(CELL, 1, t_sent_s=10.3)]
    agree, more = Sample(10.61, 2.0, 0.0), Sample(10.61, 3.0, 0.0)
    assert len(moments(records, agree)) == 1
    assert moments(records, more) == []
    # one has its first token and one runs: at vLLM, whose figures are all of one step, it does not
    # matter whether the other has arrived yet
    on_its_way = Sample(10.61, 1.0, 0.0)
    assert moments(records, on_its_way) == []
    (moment,) = moments(records, on_its_way, started=True)
    assert moment.stored.tolist() == [513.0]


def test_what_was_preempted_holds_nothing_and_the_latest_goes_first() -> None:
    # three have a first token, two run: the one whose first token came last waits again
    records = [
        record(CELL, 0),
        record(CELL, 1, t_sent_s=10.05, token_us=(400_000, 100_000, 100_000)),
        record(CELL, 2, t_sent_s=10.1, token_us=(480_000, 100_000)),
    ]
    (moment,) = moments(records, Sample(10.61, 2.0, 1.0), started=True)
    # tokens at 10.5, 10.6; and at 10.45, 10.55: two each
    assert moment.stored.tolist() == [513.0, 513.0]
    # one that has ended there and not here is no preemption, and only vLLM preempts
    assert moments(records, Sample(10.61, 2.0, 0.0), started=True) == []
    assert moments(records, Sample(10.61, 2.0, 1.0)) == []


def test_those_that_wait_hold_nothing_and_the_oldest_is_served_first() -> None:
    # at 10.61 the first decodes, the second (sent 10.1) is read, the third (10.2) waits
    records = [
        record(CELL, 0),
        record(CELL, 1, t_sent_s=10.1, token_us=(900_000, 100_000)),
        record(CELL, 2, t_sent_s=10.2, prompt_tokens=100, token_us=(1_900_000, 100_000)),
    ]
    (moment,) = moments(records, Sample(10.61, 2.0, 1.0), chunk=128)
    assert moment.in_flight == 3
    assert moment.promised.tolist() == [640.0, 640.0]
    assert moment.decoding.tolist() == [1.0, 0.0]
    # read from 10.5 (the first token before it) to 11.0: a fifth of 4 chunks of 128 is none yet
    assert moment.stored.tolist() == [513.0, 0.0]
    assert moment.held.tolist() == [513.0]
    assert not moment.settled


@pytest.mark.parametrize(
    ("at_s", "started", "read"),
    [
        # 2,048 tokens from 10 to 12 in four chunks of 512: half a second each
        (10.4, False, 0.0),
        (10.6, False, 512.0),
        (11.1, False, 1024.0),
        # vLLM counts as running what has its first chunk
        (10.4, True, 512.0),
        (11.6, True, 1536.0),
    ],
)
def test_a_prefill_is_as_far_as_its_time(at_s: float, started: bool, read: float) -> None:
    long = record(CELL, prompt_tokens=2048, token_us=(2_000_000, 100_000))
    (moment,) = moments([long], Sample(at_s, 1.0, 0.0), started=started)
    assert moment.stored.tolist() == [read]


def test_a_request_without_a_token_is_held_to_its_end() -> None:
    lost = failure(CELL, 0, t_end_s=11.0)
    (moment,) = moments([lost], Sample(10.9, 1.0, 0.0), Sample(11.1, 1.0, 0.0), started=True)
    # its prompt of 512 is as asked, and its first chunk is all that is sure
    assert (moment.t_s, moment.stored.tolist()) == (10.9, [512.0])


def test_events_of_several_tokens_count_as_the_server_counted() -> None:
    # three events of which the client saw one token each, the server says 6: two tokens each
    burst = record(CELL, output_tokens=6)
    (moment,) = moments([burst], Sample(10.65, 1.0, 0.0))
    assert moment.stored.tolist() == [512 + 2 * 2 - 1]


def test_without_gauges_only_what_has_a_token_is_held() -> None:
    records = [record(CELL, 0), record(CELL, 1, t_sent_s=10.3)]
    (moment,) = moments(records, Sample(10.61, None, None))
    assert moment.stored.tolist() == [513.0]


def test_the_servers_count_dates_its_page_among_the_clients_tokens() -> None:
    # asked at 10.595, the page counts 513 tokens: two were received, the second at 10.6
    (moment,) = moments([record(CELL)], Sample(10.595, 1.0, 0.0, tokens=513.0))
    assert moment.stored.tolist() == [513.0]
    assert moment.t_s == 10.595
    # no moment near has 520, but a busy server may be some tokens ahead
    (moment,) = moments([record(CELL)], Sample(10.595, 1.0, 0.0, tokens=520.0))
    assert moment.stored.tolist() == [512.0]


def test_a_page_that_speaks_of_another_request_is_no_moment() -> None:
    # read late: the request has ended there and the next one begun, of which nothing is stored
    late = Sample(10.595, 1.0, 0.0, tokens=0.0)
    assert moments([record(CELL)], late) == []
    # while a prompt is being read the client's count is an estimate, and no reason to doubt
    (moment,) = moments([record(CELL)], Sample(10.3, 1.0, 0.0, tokens=0.0), chunk=256)
    assert moment.stored.tolist() == [256.0]


def test_many_samples_are_thinned_evenly() -> None:
    samples = [Sample(float(t), None, None) for t in range(4001)]
    kept = np.array([sample.t_s for sample in thinned(samples)])
    assert kept.size == MAX_MOMENTS
    assert (kept[0], kept[-1]) == (0.0, 4000.0)
    assert thinned(samples[:MAX_MOMENTS]) == samples[:MAX_MOMENTS]
