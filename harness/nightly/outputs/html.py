"""``night.html``: one self-contained page, the gated figures first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.nightly.night_types import Judged, Night
from harness.nightly.outputs.headline import headline
from harness.nightly.outputs.sections import (
    HEADS,
    SIGHT_HEADS,
    about_line,
    event_lines,
    gated,
    method_lines,
    moved,
    notes,
    reasons,
    rest_text,
    row,
    sight_note,
    sight_rows,
    ungated,
)
from harness.nightly.outputs.trend import READ, TABLE_HEADS, left_out_text, night_rows, trend
from harness.nightly.outputs.words import verdict_text
from harness.report.backend_view import TableView
from harness.report.drawing import Drawing
from harness.report.html import page_environment, template_text

#: more would take minutes to draw and megabytes to send
_MOST_DRAWN = 60
#: verdict -> CSS class of its badge
_TONES = {"ok": "", "improved": "", "regressed": "bad"}
_OUTCOME_TONES = {"OK": "none", "REGRESSED": "invalid", "FAILED": "invalid"}


@dataclass(frozen=True)
class TrendView:
    """One series: its drawing, its verdict and its nights."""

    drawing: Drawing
    svg: Markup
    verdict: str
    tone: str
    table: TableView
    note: str


def html_night(night: Night) -> str:
    """The whole page; what came from servers is escaped by the template."""
    said = headline(night)
    first, others = gated(night), _others(night)
    drawn = others[: max(_MOST_DRAWN - len(first), 0)]
    page = (
        page_environment()
        .get_template("nightly.html")
        .render(
            css=Markup(template_text("report.css")),  # noqa: S704 - our own file, no user text
            night=night,
            said=said,
            tone=_OUTCOME_TONES.get(said.word, "warning"),
            about=about_line(night),
            notes=notes(night),
            gated=_table("Gated figures", HEADS, map(row, first)),
            reasons=reasons(first),
            moved=_table("Moved, not gated", HEADS, map(row, moved(night))),
            rest=rest_text(night),
            trends=_views(first, "g"),
            more=_views(drawn, "n"),
            undrawn=len(others) - len(drawn),
            others=_table("Not gated", HEADS, map(row, others)),
            sight=_table("Smallest regression", SIGHT_HEADS, sight_rows(night)),
            sight_note=sight_note(night),
            events=event_lines(night),
            method=(*method_lines(night), READ),
        )
    )
    return page.strip() + "\n"


def _others(night: Night) -> list[Judged]:
    """Those that are not gated; what moved comes first."""
    first = moved(night)
    known = {id(item) for item in first}
    return [*first, *(item for item in ungated(night) if id(item) not in known)]


def _table(title: str, heads: Sequence[str], rows: Iterable[tuple[str, ...]]) -> TableView:
    return TableView(title, tuple((head, "", "") for head in heads), tuple(rows))


def _views(items: Sequence[Judged], prefix: str) -> list[TrendView]:
    found = []
    for place, item in enumerate(items):
        drawing = trend(item, f"{prefix}{place}")
        if drawing is None:
            continue
        found.append(
            TrendView(
                drawing=drawing,
                svg=Markup(drawing.svg),  # noqa: S704 - our own drawing; its texts are escaped
                verdict=verdict_text(item.verdict),
                tone=_TONES.get(item.verdict.name, "off"),
                table=_table(drawing.title, TABLE_HEADS, night_rows(item)),
                note=left_out_text(item),
            )
        )
    return found
