"""Columns against a plain reading of the records, one by one, on random small runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.run import analyse
from harness.analysis.sound import sound
from harness.analysis.summary_types import CellFigures
from harness.records import CellKey, RequestRecord, RunEvent, token_times_us, wire_bytes
from harness.rundir import RunDir
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import manifest

CELLS = (cell_of(PAGED, 2), cell_of(PAGED, 3), cell_of(STATIC, 2))
START_S = 1000.0


@st.composite
def events_of(draw: st.DrawFn, size: int) -> dict[str, object]:
    """What a stream's events may carry: bursts, coalesced ones, a count or none."""
    carried = None
    if draw(st.booleans()):
        carried = tuple(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    total = sum(carried) if carried is not None else size
    stated = draw(st.sampled_from([total, total + 1, 0, None]))
    return {
        "token_n": carried,
        "coalesced": tuple(sorted(draw(st.sets(st.integers(0, size - 1))))),
        "output_tokens": stated,
        "output_tokens_source": None if stated is None else "usage",
        "prompt_tokens": draw(st.sampled_from([512, 600, None])),
        "buffered": draw(st.booleans()),
        "clock": draw(st.sampled_from(["kernel", "mixed", "monotonic"])),
    }


@st.composite
def user_records(draw: st.DrawFn, cell: CellKey, user: int) -> list[RequestRecord]:
    """One user's requests, one after the other, good ones and failures."""
    made: list[RequestRecord] = []
    now = START_S + draw(st.integers(0, 1000)) * 1e-4
    worker = f"w{user % 2}"
    for number in range(draw(st.integers(0, 6))):
        gaps = tuple(draw(st.lists(st.integers(1, 300_000), min_size=0, max_size=6)))
        end = now + sum(gaps) * 1e-6 + draw(st.integers(1, 40)) * 1e-3
        common: dict[str, object] = {
            "worker": worker, "user": user, "t_intended_s": now - 0.0005, "t_sent_s": now,
            "t_end_s": end, "prompt_hash": f"{draw(st.integers(0, 40))}",
        }  # fmt: skip
        # a worker numbers its own requests; two users of one worker never share a number
        seq = user * 100 + number
        fate = draw(st.sampled_from(["ok", "ok", "ok", "failed", "cancelled", "absurd"]))
        if not gaps or fate in ("failed", "cancelled"):
            outcome = "cancelled" if fate == "cancelled" else "reset"
            made.append(failure(cell, seq, outcome=outcome, token_us=gaps, **common))
        elif fate == "absurd":
            made.append(record(cell, seq, **{**common, "output_tokens": 10**9 + 1}))
        else:
            made.append(
                record(cell, seq, token_us=gaps, **{**common, **draw(events_of(len(gaps)))})
            )
        now = end + draw(st.integers(0, 200)) * 1e-4
    return made


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[RequestRecord], list[RunEvent]]:
    """Records of three cells in a random order, some of them twice, and the marks."""
    records: list[RequestRecord] = []
    events: list[RunEvent] = []
    for cell in CELLS:
        users = int(cell.level)
        own = [item for user in range(users) for item in draw(user_records(cell, user))]
        records += own
        events += [
            RunEvent(t_s=START_S, kind="level_start", cell=cell, detail={"users": users}),
            RunEvent(t_s=START_S + draw(st.floats(0.0, 5.0)), kind="window_close", cell=cell),
        ]
    again = draw(st.lists(st.sampled_from(records), max_size=3)) if records else []
    return draw(st.permutations([*records, *again])), events


class Plain:
    """The figures of one cell by loops over its records."""

    def __init__(self, cell: CellKey, records: Sequence[RequestRecord], close_s: float) -> None:
        own = [r for r in records if r.cell == cell and sound(r)]
        self.records = list({(r.worker, r.seq): r for r in reversed(own)}.values())
        self.duplicates = len(own) - len(self.records)
        self.opened, self.closed = self._opened(int(cell.level)), close_s
        if self.opened is not None and self.opened > close_s:
            self.opened = None
        inside = self.records if self.opened is not None else []
        self.counted = [r for r in inside if (self.opened or 0) <= (r.t_sent_s or 0) <= self.closed]
        self.good = [r for r in self.counted if r.outcome == "ok"]

    def _opened(self, users: int) -> float | None:
        first: dict[int, float] = {}
        for item in self.records:
            if item.outcome != "cancelled":
                first[item.user] = min(item.t_end_s, first.get(item.user, float("inf")))
        return sorted(first.values())[users - 1] if len(first) >= users else None

    def ttft_s(self) -> list[float]:
        return [r.token_us[0] * 1e-6 for r in self.good]

    def e2e_s(self) -> list[float]:
        return [sum(r.token_us) * 1e-6 for r in self.good]

    def itl_s(self) -> list[float]:
        return [gap * 1e-6 for r in self.good for gap in r.token_us[1:]]

    def tpot_s(self) -> list[float]:
        return [sum(r.token_us[1:]) * 1e-6 / (n - 1) for r in self.good if (n := produced(r)) > 1]

    def coalesced_share(self) -> float | None:
        events = sum(len(r.token_us) for r in self.good)
        return sum(len(r.coalesced) for r in self.good) / events if events else None

    def first_coalesced_share(self) -> float | None:
        return statistics.fmean(0 in r.coalesced for r in self.good) if self.good else None

    def tokens_between(self, margin_s: float) -> float:
        """Tokens in the window widened by a margin at both ends."""
        low, high = (self.opened or 0) - margin_s, self.closed + margin_s
        total = 0.0
        for item in self.records:
            if item.outcome == "ok":
                carried = item.token_n or (1,) * len(item.token_us)
                scale = produced(item) / sum(carried) if sum(carried) else 1.0
                times = [(item.t_sent_s or 0) + us * 1e-6 for us in token_times_us(item)]
                total += scale * sum(
                    n for n, at in zip(carried, times, strict=True) if low < at <= high
                )
        return total


def produced(item: RequestRecord) -> int:
    """The server's count where it states one above 0, else the tokens seen."""
    seen = sum(item.token_n) if item.token_n is not None else len(item.token_us)
    return item.output_tokens or seen


def by_rank(values: list[float], p: int) -> float:
    ranked = sorted(values)
    low, part = divmod(p * (len(ranked) - 1), 100)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * part / 100


def compare(found: CellFigures, plain: Plain) -> None:
    assert found.window.open_s == plain.opened
    assert found.counts.recorded == len(plain.records)
    assert found.counts.duplicates == plain.duplicates
    assert found.counts.sent == len(plain.counted)
    assert found.counts.ok == len(plain.good)
    latency = found.latency
    for figures, values in (
        (latency.ttft_s, plain.ttft_s()),
        (latency.e2e_s, plain.e2e_s()),
        (latency.itl_s, plain.itl_s()),
        (latency.tpot_s, plain.tpot_s()),
    ):
        assert figures.n == len(values)
        for p in (5, 50, 95, 99) if values else ():
            assert figures.value(p) == pytest.approx(by_rank(values, p), rel=1e-9, abs=1e-12)
    assert latency.coalesced_share == pytest.approx(plain.coalesced_share())
    assert latency.first_coalesced_share == pytest.approx(plain.first_coalesced_share())
    rate, length = found.throughput.output_tokens_per_s, found.window.length_s
    if rate is not None and length is not None:
        # an event within a microsecond of an edge may fall to either side
        assert plain.tokens_between(-1e-6) - 1e-6 <= rate * length
        assert rate * length <= plain.tokens_between(1e-6) + 1e-6


def journal_lines(records: Sequence[RequestRecord]) -> Iterator[bytes]:
    """The lines of a journal with a damaged one after the first, and a torn last one."""
    for index, item in enumerate(records):
        yield wire_bytes(item)
        if index == 0:
            yield b'{"worker":"w0","unheard_of":1}\n'
    yield wire_bytes(record(CELLS[0]))[:-9]


@settings(max_examples=100, deadline=None)
@given(runs())
def test_columns_equal_a_plain_reading(made: tuple[list[RequestRecord], list[RunEvent]]) -> None:
    records, events = made
    with TemporaryDirectory() as folder:
        run = RunDir.create(Path(folder), "run")
        (run.path / "records.jsonl").write_bytes(b"".join(journal_lines(records)))
        summary = analyse(manifest((PAGED, STATIC)), run.records(), events, {}, run.damaged)
    closed = {e.cell: e.t_s for e in events if e.kind == "window_close"}
    assert run.damaged == ({"records.jsonl": 1} if records else {})
    assert [item.cell for item in summary.cells] == sorted(
        CELLS, key=lambda cell: (cell.backend != "paged", cell)
    )
    for found in summary.cells:
        compare(found, Plain(found.cell, records, closed[found.cell]))
