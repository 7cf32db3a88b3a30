from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan.replay import Selection, select
from harness.plan.traces import TraceError, TraceRow, parse_trace

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2225670,879,55
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]}
"""
PLAIN = "arrival_s,prompt_tokens,output_tokens\n10,8,4\n10.5,9,3\n"


def test_azures_trace() -> None:
    """50.995169 - 46.68059 = 4.314579 s; 51.222567 - 46.68059 = 4.541977 s."""
    assert parse_trace(AZURE.splitlines()) == (
        TraceRow(0.0, 374, 44),
        TraceRow(4.314579, 396, 109),
        TraceRow(4.541977, 879, 55),
    )


def test_mooncakes_trace() -> None:
    assert parse_trace(MOONCAKE.splitlines()) == (
        TraceRow(0.0, 1100, 5, (0, 1, 2)),
        TraceRow(2.5, 600, 7, (0, 3)),
    )


def test_a_plain_trace_in_both_forms() -> None:
    rows = (TraceRow(0.0, 8, 4), TraceRow(0.5, 9, 3))
    assert parse_trace(PLAIN.splitlines()) == rows
    lines = [
        '{"arrival_s": 10, "prompt_tokens": 8, "output_tokens": 4}',
        '{"arrival_s": 10.5, "prompt_tokens": 9, "output_tokens": 3, "more": null}',
    ]
    assert parse_trace(lines) == rows


def test_what_spreadsheets_add_is_let_be() -> None:
    """A byte order mark, Windows' line ends, quotes, blank lines, further columns, zones."""
    text = (
        '\ufeffmodel,"TIMESTAMP",ContextTokens,GeneratedTokens\r\n'
        "\r\n"
        'a,"2024-05-10 00:00:00.5+00:00", 3 ,4\r\n'
        "b,2024-05-10T01:00:01Z,5,6\r\n"
    )
    assert parse_trace(text.split("\n")) == (TraceRow(0.0, 3, 4), TraceRow(3600.5, 5, 6))


def test_requests_are_put_in_order_of_time() -> None:
    lines = ["arrival_s,prompt_tokens,output_tokens", "3,1,1", "1,2,2", "3,3,3"]
    assert [row.prompt_tokens for row in parse_trace(lines)] == [2, 1, 3]
    assert [row.at_s for row in parse_trace(lines)] == [0.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        (" \n\n", "it is empty"),
        ("arrival_s,prompt_tokens,output_tokens\n", "it has a header and no request"),
        ("a,b,c\n1,2,3\n", "line 1: no columns of a trace; expected TIMESTAMP, ContextTokens"),
        (PLAIN + "11,x,3\n", "line 4: prompt_tokens is 'x'; expected a whole number between 1"),
        (PLAIN + "11,0,3\n", "line 4: prompt_tokens is '0'"),
        (PLAIN + "11,5,-3\n", "line 4: output_tokens is '-3'"),
        (PLAIN + "11,5\n", "line 4: 2 columns, the header has 3"),
        (PLAIN + "nan,5,1\n", "line 4: arrival_s is 'nan'; expected seconds, 0 or more"),
        (PLAIN + "-1,5,1\n", "line 4: arrival_s is '-1'"),
        (PLAIN + '"11,5,1\n', "line 4: no CSV"),
        (AZURE + "2023-13-16 18:15:46,1,1\n", "line 5: TIMESTAMP is '2023-13-16 18:15:46'"),
        (AZURE + "yesterday,1,1\n", "line 5: TIMESTAMP is 'yesterday'; expected a date and time"),
        (MOONCAKE + "[1]\n", "line 3: no JSON object"),
        (MOONCAKE + '{"timestamp": 1', "line 3: no JSON object"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 5}', "line 3: output_length is missing"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [-1]}',
            "line 3: hash_ids is [-1]; expected a list of whole numbers",
        ),
        (
            MOONCAKE + '{"timestamp": true, "input_length": 5, "output_length": 1}',
            "line 3: timestamp is True; expected milliseconds",
        ),
    ],
)
def test_a_bad_line_is_named(text: str, words: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(text.splitlines())
    assert words in str(caught.value)


@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_text_is_read_or_refused(lines: list[str]) -> None:
    for head in ([], ["arrival_s,prompt_tokens,output_tokens"], MOONCAKE.splitlines()):
        try:
            parse_trace([*head, *lines])
        except TraceError as error:
            assert "\n" not in str(error)


ROWS = (TraceRow(0.0, 100, 10), TraceRow(5.0, 1000, 40), TraceRow(10.0, 2000, 400))


def test_all_of_a_trace() -> None:
    """3 requests in 10 s."""
    found = select(ROWS, Selection())
    assert found.rows == ROWS
    assert (found.length_s, found.rate_rps, found.usual) == (10.0, 0.3, (1000, 40))
    assert (found.longest, found.shortened, found.skipped) == ((2000, 400), 0, 0)


def test_a_window_twice_as_fast() -> None:
    """From 4 to 9 s, time halved: the one of 5 s comes at 0.5 s of 2.5 s."""
    found = select(ROWS, Selection(start_s=4.0, end_s=9.0, time_scale=0.5))
    assert found.rows == (TraceRow(0.5, 1000, 40),)
    assert (found.length_s, found.rate_rps) == (2.5, 0.4)


def test_longer_requests_are_cut_scaled_or_left_out() -> None:
    caps = {"max_prompt_tokens": 1000, "max_output_tokens": 40}
    cut = select(ROWS, Selection(**caps))  # type: ignore[arg-type]
    assert [row[1:3] for row in cut.rows] == [(100, 10), (1000, 40), (1000, 40)]
    assert (cut.shortened, cut.skipped, cut.block_tokens) == (1, 0, 512)
    # prompts halved, answers a tenth, so that the longest fit; blocks 512 / 2
    scaled = select(ROWS, Selection(**caps, over_length="scale"))  # type: ignore[arg-type]
    assert [row[1:3] for row in scaled.rows] == [(50, 1), (500, 4), (1000, 40)]
    assert (scaled.shortened, scaled.skipped, scaled.block_tokens) == (3, 0, 256)
    left = select(ROWS, Selection(**caps, over_length="skip"))  # type: ignore[arg-type]
    assert [row[1:3] for row in left.rows] == [(100, 10), (1000, 40)]
    assert (left.shortened, left.skipped) == (0, 1)


def test_a_single_moment_has_a_rate() -> None:
    assert select((TraceRow(0.0, 1, 1),) * 3, Selection()).rate_rps == 3.0


def test_nothing_may_be_left() -> None:
    assert select(ROWS, Selection(start_s=20.0)).rows == ()


def real(name: str) -> list[str]:
    folder = Path(
        os.environ.get("KVKNEE_TRACES") or Path(__file__).resolve().parents[3] / "shared/traces"
    )
    if not (folder / name).is_file():
        pytest.skip(f"{folder / name} is not there: KVKNEE_TRACES names the folder of the traces")
    return (folder / name).read_text(encoding="utf-8").splitlines()


def test_the_public_azure_trace_as_it_is() -> None:
    """19,366 requests; the first at 18:15:46.68, the last at 19:14:08.40: 3,501.72 s."""
    rows = parse_trace(real("azure_llm_2023_conv.csv"))
    assert len(rows) == 19_366
    assert rows[0] == TraceRow(0.0, 374, 44)
    assert rows[-1] == TraceRow(3501.721937, 197, 183)
    assert max(row.prompt_tokens for row in rows) == 14_050


def test_the_public_mooncake_trace_as_it_is() -> None:
    rows = parse_trace(real("mooncake_conversation.jsonl"))
    assert len(rows) == 12_031
    assert rows[-1].at_s == 3536.999
    # every request has one id per block of 512 tokens that it begins
    assert all(len(row.blocks) == -(-row.prompt_tokens // 512) for row in rows)
