"""The report for people and for scripts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import click

from harness.doctor.examine import Report
from harness.doctor.rows import COMMANDS, Row, Status, Way

SCHEMA_VERSION = 1
_COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.FAULT: "red"}
_NAME_WIDTH = 17
#: status, name, and the blanks between
_INDENT = 2 + 9 + _NAME_WIDTH + 1
#: below this many columns a wrapped line is harder to read than a broken one
_LEAST_TEXT = 30


def render(report: Report, columns: int | None) -> str:
    """The table and the verdicts; ``columns`` None: every row stays one line."""
    lines: list[str] = []
    for section in report.sections:
        lines.append(click.style(section.title, bold=True))
        lines += [line for row in section.rows for line in _row(row, columns)]
        lines.append("")
    lines += [_verdict(report, way) for way in report.asked.ways]
    return "\n".join(lines) + "\n"


def _row(row: Row, columns: int | None) -> Iterator[str]:
    status = click.style(f"{row.status.value:<9}", fg=_COLOURS[row.status])
    name = row.name.replace("_", " ")
    text = f"{row.found} -> {row.remedy}" if row.remedy else row.found
    pieces = [text]
    if columns is not None and columns - _INDENT >= _LEAST_TEXT:
        pieces = textwrap.wrap(
            text, columns - _INDENT, break_long_words=False, break_on_hyphens=False
        )
    yield f"  {status}{name:<{_NAME_WIDTH}} {pieces[0]}"
    for piece in pieces[1:]:
        yield " " * _INDENT + piece


def _verdict(report: Report, way: Way) -> str:
    command = COMMANDS[way]
    if way == "compose" and report.asked.files is not None:
        command = f"docker compose {report.asked.files.names} up"
    faults = report.blocked_by(way)
    if not faults:
        return f"{click.style('ready', fg='green')}: {command}"
    names = ", ".join(dict.fromkeys(name.replace("_", " ") for name in faults))
    return f"{click.style('blocked', fg='red')}: {command}, by {names}"


def to_json(report: Report) -> dict[str, Any]:
    """Everything, with stable names."""
    asked = report.asked
    return {
        "schema_version": SCHEMA_VERSION,
        "exit_code": report.exit_code,
        "ways": {
            way: {
                "ready": not report.blocked_by(way),
                "blocked_by": list(report.blocked_by(way)),
                "device": asked.compose_device if way == "compose" else asked.local_device,
            }
            for way in asked.ways
        },
        "checks": [
            {
                "name": row.name,
                "section": section.title,
                "status": row.status.value,
                "found": row.found,
                "remedy": row.remedy or None,
                "ways": list(row.ways),
            }
            for section in report.sections
            for row in section.rows
        ],
    }
