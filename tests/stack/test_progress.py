"""Progress without a terminal: few plain lines."""

from __future__ import annotations

import io

from rich.console import Console

from harness.stack.progress import shown


def test_plain_lines_come_at_most_every_five_seconds_and_notes_always() -> None:
    output = io.StringIO()
    now_s = [100.0]
    with shown(Console(file=output, width=40), clock=lambda: now_s[0]) as progress:
        for step in range(24):
            now_s[0] = 100.0 + step * 0.5
            progress.update(f"waiting ({step * 0.5:.1f} s)")
        progress.note("paged is healthy [1] after 12 s: http://127.0.0.1:8000/with/a/long/path")
        progress.log_tail("the log:", ["[red]not markup[/red]"])
    assert output.getvalue().splitlines() == [
        "waiting (5.0 s)",
        "waiting (10.0 s)",
        "paged is healthy [1] after 12 s: http://127.0.0.1:8000/with/a/long/path",
        "the log:",
        "  [red]not markup[/red]",
    ]


def test_a_terminal_gets_a_status_line() -> None:
    output = io.StringIO()
    with shown(Console(file=output, force_terminal=True, width=60)) as progress:
        progress.update("waiting for paged")
        progress.note("paged is healthy")
    assert "paged is healthy" in output.getvalue()
