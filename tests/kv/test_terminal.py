"""Sizes, counts and folding: what the text of a plan is made of."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from harness.kv.engine import EngineOptions
from harness.kv.fold import fold, wrapped
from harness.kv.plan_types import PlanOptions
from harness.kv.text import render, render_comparison
from harness.kv.units import counted, exact, short_size
from tests.kv.models import CONFIGS, GIB, planned


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (2**19, "512.0 KiB"),
        # an eighth of a GiB keeps its digits: no "0.12 GiB"
        (2**27, "128.0 MiB"),
        (2**30, "1.00 GiB"),
        (1000 * 2**20, "1,000.0 MiB"),
        # 1,023.99 MiB would round to 1,024.0
        (2**30 - 2**13, "1.00 GiB"),
        (int(9.994 * 2**30), "9.99 GiB"),
        (int(9.996 * 2**30), "10.0 GiB"),
        # 24 GB is no 24 GiB: 24 x 10^9 / 2^30 = 22.35
        (24 * 10**9, "22.4 GiB"),
        (2**70, "1,024.0 EiB"),
    ],
)
def test_sizes_keep_three_digits(amount: int, shown: str) -> None:
    assert short_size(amount) == shown


def test_the_exact_bytes_stand_beside() -> None:
    assert exact(2 * GIB) == "2,147,483,648 B = 2.00 GiB"
    assert exact(1024) == "1,024 B = 1.00 KiB"
    assert exact(512) == "512 B"


def test_counts() -> None:
    assert [counted(n, "request") for n in (0, 1, 2, 1000)] == [
        "0 requests",
        "1 request",
        "2 requests",
        "1,000 requests",
    ]
    assert counted(2, "batch", "batches") == "2 batches"
    assert counted(1, "batch", "batches") == "1 batch"


def test_a_number_keeps_its_unit() -> None:
    text = "usable memory = 25,769,803,776 B = 24.0 GiB x 0.92 = 23,708,219,473 B = 22.1 GiB"
    for width in range(20, 90):
        lines = fold(text, width=width, indent=2)
        assert " ".join(line.strip() for line in lines) == text
        assert not [line for line in lines if re.search(r"\d$", line.rstrip()) and width > 30][:-1]
        assert all(not line.strip().startswith(("B ", "GiB")) for line in lines)
    # the kind of what is counted stays with it as well
    assert fold("8 KV heads", width=4, indent=0) == ["8 KV heads"]
    # a factor is no unit
    assert fold("2 x 4", width=3, indent=0) == ["2 x", "4"]
    assert wrapped(["a b"], 3) == ["a", "    b"]


#: words that are units or what is counted
UNIT = r"(B|[KMGTPE]iB|tokens?|blocks?|requests?|layers?|KV|heads?|lengths?|batch|draws|times)\b"


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_no_line_begins_with_a_unit(name: str) -> None:
    if name == "unknown-sparse":
        return
    options = PlanOptions(vram_bytes=4096 * GIB, lengths=((100, 28), (90, 10)))
    for width in (40, 80):
        lines = render(planned(name, options), all_layouts=True, width=width).splitlines()
        for before, line in pairwise(lines):
            # a continued line is set in by six or more
            split = re.search(r"(?<!\w)[\d,.]*\d$", before) and re.match(rf"\s{{6,}}{UNIT}", line)
            assert not split, (before, line)
            assert width == 40 or len(line) <= 80


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_no_plural_of_one_and_no_lost_digits(name: str) -> None:
    if name == "unknown-sparse":
        return
    engine = EngineOptions(max_num_seqs=1, block_size=1, max_num_batched_tokens=1)
    options = PlanOptions(engine=engine, kv_memory_bytes=64 * GIB, context=1)
    text = render(planned(name, options), all_layouts=True)
    # vLLM's own words aside
    ours = text.replace("tokens per request: ", "").replace("1 of ", "")
    assert not re.search(r"(?<![\d.,])1 (\w+ )?(requests|layers|tokens|blocks|heads)\b", ours), text
    assert not re.search(r"(?<![\d,.])0\.\d+ [KMGT]iB", text)


def test_one_request_is_one() -> None:
    options = PlanOptions(kv_memory_bytes=3 * GIB, context=4096)
    text = render(planned("llama-2-7b", options))
    assert "safe concurrency       1 request at once\n" in text
    batch = PlanOptions(kv_memory_bytes=3 * GIB, context=4096, batch=2)
    assert "--batch 2 does not fit: 1 request does" in planned("llama-2-7b", batch).warnings


def test_what_decides_is_marked_in_the_table() -> None:
    engine = EngineOptions(max_num_seqs=16)
    text = render(planned("llama-2-7b", PlanOptions(engine=engine, kv_memory_bytes=8 * GIB)))
    # 1,023 blocks of 16 tokens: 128 tokens take 8 -> 127 held, 16 run; 1,024 take 64 -> 15
    rows = {line.split()[0]: line.split()[5] for line in text.splitlines() if "FLOP" in line}
    assert rows["128"] == "16*"
    assert rows["1,024"] == "15"
    assert rows["8,192"] == "0!"
    assert "* max_num_seqs 16 decides: the memory holds more" in text
    assert "! longer than max_model_len, 4,096 tokens: such a request is refused" in text
    unasked = render(planned("llama-2-7b", PlanOptions(kv_memory_bytes=64 * GIB)))
    # 8,191 // 8 = 1,023 of 128 tokens; vLLM's default is 256
    assert "1,023" in unasked
    assert "vLLM's default max_num_seqs runs 256 at once" in unasked


def test_the_head_of_lengths_describes_them() -> None:
    # tokens 640, 1,152 and 104: mean 632, median 640; 524,288 B each
    lengths = ((512, 128), (1024, 128), (100, 4), (5000, 10))
    options = PlanOptions(kv_memory_bytes=8 * GIB, lengths=lengths, lengths_source="trace.txt")
    plan = planned("llama-2-7b", options)
    assert plan.lengths is not None
    assert (plan.lengths.requests, plan.lengths.left_out) == (3, 1)
    assert (plan.lengths.tokens.least, plan.lengths.tokens.most) == (104, 1152)
    assert (plan.lengths.tokens.mean, plan.lengths.tokens.median) == (632.0, 640.0)
    assert plan.lengths.tokens.p99 is None
    assert plan.lengths.needed_bytes.mean == plan.needed_bytes == 632 * 524_288
    # blocks of 16: 40, 72 and 7, so 119 / 3 x 8 MiB
    assert plan.reserved_bytes == round(119 * 8 * 2**20 / 3)
    assert plan.tokens is None
    head = render(plan).split("Capacity")[0]
    assert "4,096 tokens\n    needed" not in head
    assert "3 lengths of trace.txt, 1 left out" in head
    assert "104 to 1,152 tokens, mean 632.0, median 640.0" in head
    assert "mean 331,350,016 B = 316.0 MiB, longest 576.0 MiB" in head
    assert "at once in 99% of draws" in head
    # the layouts are those of the lengths, not of one request of max_model_len
    by_layout = {row.layout: row for row in plan.layouts}
    assert by_layout["contiguous-max"].waste_bytes == (4096 - 632) * 524_288
    assert by_layout["contiguous-max"].requests == 4
    assert by_layout["paged"].requests == plan.safe_concurrency
    more = PlanOptions(kv_memory_bytes=8 * GIB, lengths=lengths, batch=2)
    assert "2 requests of mean length" in render(planned("llama-2-7b", more))


def test_a_percentile_of_lengths_needs_five_hundred() -> None:
    # 1 .. 500: place 0.99 x 499 = 494.01 -> 495.01
    lengths = tuple((size, 0) for size in range(1, 501))
    plan = planned("llama-2-7b", PlanOptions(kv_memory_bytes=8 * GIB, lengths=lengths))
    assert plan.lengths is not None
    assert plan.lengths.tokens.p99 == pytest.approx(495.01)
    assert "p99 495.0" in render(plan)


def test_models_side_by_side_name_the_request() -> None:
    plans = [planned(name, PlanOptions(context=512)) for name in ("llama-2-7b", "qwen2.5-7b")]
    assert re.search(r"request, tokens +512 +512\n", render_comparison(plans))
