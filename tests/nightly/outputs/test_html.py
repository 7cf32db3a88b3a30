"""The page: self-contained, escaped, with the same in words for those who do not see it."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from harness.nightly.gate_types import Reading
from harness.nightly.outputs.html import html_night
from harness.nightly.outputs.trend import left_out_text, night_rows, trend
from harness.nightly.sight import ChangePoint
from tests.nightly.outputs.nights import (
    ASKED,
    NIGHTS,
    TONIGHT,
    Asked,
    hostile_night,
    judged,
    long_night,
    night,
    whole_night,
)

_ALONE = {"meta", "br", "link", "img", "input", "path", "use"}


class Reader(HTMLParser):
    """Elements, with what they nest in."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "srcset") and value:
                self.links.append(value)
            assert not name.startswith("on"), f"a handler on {tag}"
        if tag not in _ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _ALONE:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in _ALONE:
            assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", NIGHTS)
def test_a_page_needs_nothing_from_elsewhere(name: str) -> None:
    page = html_night(NIGHTS[name]())
    reader = read(page)
    assert all(link.startswith("#") for link in reader.links)
    assert not {"script", "iframe", "object", "form", "link", "img"} & set(reader.tags)
    assert "url(http" not in page and "@import" not in page
    assert "default-src 'none'" in page
    assert len(reader.ids) == len(set(reader.ids))


def test_a_hostile_name_is_text_alone() -> None:
    page = html_night(hostile_night())
    read(page)
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_gated_come_first_with_their_verdicts() -> None:
    page = html_night(whole_night())
    gated, _, others = page.partition("<h2>All that is not gated</h2>")
    assert gated.count("<figure") == 7
    # 6 + 14 that are not gated, less what is nowhere measured: all have nights
    assert others.count("<figure") == 6 + 14
    assert '<span class="status bad">regressed</span>' in gated
    assert '<span class="status off">unstable</span>' in gated
    assert '<span class="status ">improved?</span>' in gated
    assert gated.count("<summary>The nights as a table</summary>") == 7


def test_a_drawing_says_what_it_shows() -> None:
    drawing = trend(judged([ASKED["regressed"]])[0], "k")
    assert drawing is not None
    start = drawing.svg[:900]
    assert 'role="img"' in start and "<title>short contiguous 512+64 c16: TTFT p95, ms<" in start
    assert "<desc>" in start and "regressed; 90 nights from 4" in start
    assert "baseline 495 ms over 90 nights: +25.0 %" in drawing.caption
    assert "since tonight" in drawing.caption


def test_a_name_draws_no_formula_and_breaks_no_drawing() -> None:
    item = judged([Asked(run=r"$\frac{1}{$ <b>")])[0]
    drawing = trend(item, "k")
    assert drawing is not None and "<b>" not in drawing.svg and "&lt;b&gt;" in drawing.svg


@pytest.mark.parametrize(
    "asked",
    [
        Asked(nights=0),
        Asked(nights=1),
        Asked(nights=0, tonight=None),
        Asked(nights=5, tonight=None),
        Asked("failure_rate", tonight=0.0),
        Asked("memory_knee", level=None, within=1e-12),
        Asked(tonight=40.0),
        Asked("output_tokens_per_s", tonight=1e-6),
    ],
)
def test_odd_series_are_drawn_or_left_out(asked: Asked) -> None:
    item = judged([asked])[0]
    drawing = trend(item, "k")
    nothing = asked.nights == 0 and asked.tonight is None
    assert (drawing is None) is nothing
    assert len(night_rows(item)) == min(asked.nights, 30) + (asked.tonight is not None)
    read(html_night(night(judged=(item,), exit_code=0)))


def test_the_table_beside_a_drawing_ends_somewhere() -> None:
    item = long_night().judged[0]
    rows = night_rows(item)
    assert len(rows) == 31 and rows[0][0] == f"{TONIGHT} (tonight)" and rows[1][0] == "n399"
    assert left_out_text(item) == "370 older nights: kvknee history export"
    assert left_out_text(judged([Asked(nights=30)])[0]) == ""


def test_nights_that_were_kept_out_of_the_baseline_are_shown() -> None:
    item = judged([ASKED["regressed"]])[0]
    bad = Reading("n090", (0.6, 0.61, 0.62))
    shown = replace(
        item,
        earlier=(*item.series.baseline, bad),
        since=ChangePoint("n090", 0.25, 0.001),
    )
    assert night_rows(shown)[1][:2] == ("n090", "610")
    plain, rings = trend(item, "k"), trend(shown, "k")
    assert plain is not None and rings is not None
    # a ring's inside is the card's colour
    assert "var(--card)" in rings.svg and "var(--card)" not in plain.svg
    assert "since night n090" in rings.caption and "91 nights from 4" in rings.alt


def test_a_long_history_stays_small() -> None:
    page = html_night(long_night())
    assert page.count("<figure") == 8
    # 8 x 401 points and bars: about 60 kB a drawing
    assert len(page) < 1_000_000


def test_of_very_many_series_the_first_are_drawn() -> None:
    items = [ASKED["ok"], *(Asked(level=n, gated=False, nights=6) for n in range(1, 71))]
    page = html_night(night(items, exit_code=0))
    assert page.count("<figure") == 60
    assert "11 more stand in the table above only." in page
    assert len(re.findall(r"<th scope=\"row\">short paged 512\+64 c\d+</th>", page)) >= 70
