"""A night on a terminal."""

from __future__ import annotations

from rich.console import Console

from harness.nightly.night_types import Night


def show(night: Night, console: Console) -> None:
    """Print the gated series and what happened."""
    for item in night.judged:
        if item.verdict.gated:
            said = item.verdict
            console.print(f"{said.name}: {said.metric} of {said.cell}: {said.reason}")
    for event in night.events:
        console.print(f"{event.kind}: {event.text}")
