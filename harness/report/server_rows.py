"""The table that holds the client's TTFT against the server's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.server_ttft_types import ServerTtft
from harness.analysis.summary_types import CellFigures
from harness.report.rows import Column, level_column
from harness.report.units import ABSENT, ms_text


def server_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """Means over the same stretch of each level; no columns where no server states a TTFT."""
    if all(cell.server_ttft is None for cell in cells):
        return []
    return [
        level_column(cells),
        _column(
            "TTFT here",
            "mean ms",
            lambda both: ms_text(both.client_mean_s),
            "sent to first token's arrival, between two scrapes",
        ),
        _column(
            "TTFT of the server",
            "mean ms",
            lambda both: ms_text(both.server_mean_s),
            "its own histogram, between the same two scrapes",
        ),
        _column(
            "difference",
            "ms",
            lambda both: ms_text(both.difference_s),
            "outside the server's clock: the way, its HTTP front end, a busy machine",
        ),
        _column(
            "queueing",
            "mean ms",
            lambda both: ms_text(both.queue_mean_s),
            "part of the server's TTFT that a request waited for its turn",
        ),
        _column(
            "requests",
            "here / server",
            lambda both: f"{both.client_n:,} / {both.server_n:,}",
            "first tokens between the scrapes; other clients' are in the server's",
        ),
    ]


def _column(title: str, unit: str, text: Callable[[ServerTtft], str], explain: str) -> Column:
    def show(figures: CellFigures) -> str:
        return ABSENT if figures.server_ttft is None else text(figures.server_ttft)

    return Column(title, unit, show, explain)
