"""Findings about the times of a cell's tokens, as the client took them."""

from __future__ import annotations

import re

from harness.analysis.cell_facts import CellFacts
from harness.analysis.checks_client import stalled
from harness.analysis.latency_types import COALESCED_LIMIT
from harness.analysis.summary_types import CellFigures
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.records import Finding

_STOOD_STILL = "See what kept the client from running, and repeat the level."
#: a URL of this machine
_LOCAL = re.compile(r"https?://(localhost|127(\.\d+){3}|\[::1\])(?=[:/]|$)")


def stamp_findings(figures: CellFigures, facts: CellFacts, manifest: Manifest) -> list[Finding]:
    """What weakens the times of tokens: shared reads, a stepped clock, a buffer between."""
    found: list[Finding] = []
    latency = figures.latency
    for share, what in (
        (latency.coalesced_share, "token events share a read: ITL is an upper bound"),
        (
            latency.first_coalesced_share,
            "first tokens share a read: TTFT is an upper bound, TPOT a lower one,",
        ),
    ):
        if (share or 0.0) > COALESCED_LIMIT:
            found.append(
                Finding(
                    code="coalesced",
                    severity="warning",
                    text=f"{(share or 0) * 100:.1f} % of the {what} and not "
                    f"trusted (limit {COALESCED_LIMIT * 100:.0f} %).",
                    remedy=_unshare(figures, manifest),
                    cell=figures.cell,
                )
            )
    if facts.clock_steps:
        found.append(
            Finding(
                code="clock_step",
                severity="warning",
                text=f"The wall clock stepped during {counted(facts.clock_steps, 'request')} "
                f"(by up to {facts.largest_step_s:.3f} s); kernel time stamps are doubtful there.",
                remedy="Let the clock settle (NTP slewing, no manual change) and repeat the level.",
                cell=figures.cell,
            )
        )
    if latency.buffered:
        found.append(
            Finding(
                code="buffered_stream",
                severity="warning",
                text=f"{facts.buffered} of {counted(facts.counted, 'stream')} arrived nearly all "
                f"at once at the end: {_held_back(figures)}, so TTFT, TPOT and ITL are "
                "not the server's and not trusted.",
                remedy=_STOOD_STILL
                if stalled(figures)
                else "Switch off buffering and compression in proxies, or ask the server itself.",
                cell=figures.cell,
            )
        )
    return found


def _unshare(figures: CellFigures, manifest: Manifest) -> str:
    """How to get token events that come with reads of their own."""
    if stalled(figures):
        return _STOOD_STILL
    urls = [info.url for info in manifest.backends if info.name == figures.cell.backend]
    # nobody puts a proxy before a server of the same machine, and the client goes round it
    if all(_LOCAL.match(url) for url in urls):
        return "Give the client a free core."
    return "Take proxies out of the way and give the client a free core."


def _held_back(figures: CellFigures) -> str:
    if stalled(figures):
        return "the load generator, which stood still meanwhile, or a buffer held them back"
    return "something between buffers them"
