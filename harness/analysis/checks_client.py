"""Findings about the load generator: it was the limit, or it stood still."""

from __future__ import annotations

from harness.analysis.client import STALL_S
from harness.analysis.summary_types import CellFigures
from harness.records import Finding

#: Standing still for less than this share of the window moves no figure by much.
STALL_SHARE = 0.01
#: Beyond this share the level measured something else than the server.
FROZEN_SHARE = 0.05
#: A standstill this long is worth a finding in a window of any length.
_LONG_STALL_S = 0.5
_OWN_MACHINE = "Give it a core of its own or another machine"


def stalled(figures: CellFigures) -> bool:
    """Whether the client stood still for long enough to bias the level's figures."""
    stood, share = figures.client.stood_still_s, _share(figures)
    return stood > STALL_S and (share > STALL_SHARE or stood > _LONG_STALL_S)


def frozen(figures: CellFigures) -> bool:
    """Whether it stood still for so long that the level gives no verdict."""
    return figures.client.stood_still_s > STALL_S and _share(figures) > FROZEN_SHARE


def client_findings(figures: CellFigures) -> list[Finding]:
    """Findings about the load generator at one level."""
    found: list[Finding] = []
    if figures.client.bound:
        found.append(
            Finding(
                code="client_bound",
                severity="invalid",
                text=f"The load generator was the limit: {'; '.join(figures.client.bound_by)}.",
                remedy=f"{_OWN_MACHINE}; this level gives no verdict.",
                cell=figures.cell,
            )
        )
    if stalled(figures):
        found.append(_stood_still(figures))
    return found


def _stood_still(figures: CellFigures) -> Finding:
    no_verdict = frozen(figures)
    text = (
        f"The load generator stood still for {figures.client.stood_still_s:.2f} s "
        f"({_share(figures) * 100:.1f} % of the window), so TTFT, ITL and throughput are not "
        "trusted"
    )
    if no_verdict:
        text += f" and the level gives no verdict (limit {FROZEN_SHARE * 100:.0f} %)"
    return Finding(
        code="client_stood_still",
        severity="invalid" if no_verdict else "warning",
        text=f"{text}.",
        remedy=f"{_OWN_MACHINE}, keep it from being stopped or suspended, and repeat the level.",
        cell=figures.cell,
    )


def _share(figures: CellFigures) -> float:
    length = figures.window.length_s
    return figures.client.stood_still_s / length if length else 0.0
