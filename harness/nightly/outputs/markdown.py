"""``night.md``: a night for a job summary or a chat; what servers sent is escaped. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.nightly.night_types import Night
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
)
from harness.report.escaping import escaped
from harness.report.markdown import named_rows


def markdown_night(night: Night) -> str:
    """The whole night as Markdown, ending in a newline."""
    said = headline(night)
    items, others = gated(night), moved(night)
    parts = [
        f"# kvknee nightly: {escaped(night.suite)}",
        f"**{said.word}**: {escaped(said.text)}",
        _list(notes(night)),
        escaped(about_line(night)),
        *_section("Gated", named_rows(HEADS, map(row, items)) if items else "Nothing is gated."),
        _list(reasons(items)),
        *_section("Moved, not gated", named_rows(HEADS, map(row, others)) if others else ""),
        escaped(rest_text(night)),
        *_section("Events", _list(event_lines(night))),
    ]
    if items:
        table = named_rows(SIGHT_HEADS, sight_rows(night))
        parts += [*_section("Smallest regression that this history can see", table)]
        parts.append(escaped(sight_note(night)))
    parts += _section("How it was judged", _list(method_lines(night)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, content: str) -> list[str]:
    return [f"## {title}", content] if content else []


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)
