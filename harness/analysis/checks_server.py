"""Findings about the server's own counts: time that its clock does not see, load of others."""

from __future__ import annotations

from harness.analysis.server_ttft_types import ServerTtft
from harness.analysis.summary_types import CellFigures
from harness.records import Finding

#: The client's mean TTFT may exceed the server's by this share of it, or by this much: what an
#: HTTP front end in Python takes on a core that its engine keeps busy.
TTFT_SHARE, TTFT_FLOOR_S = 0.25, 0.050
#: Beyond this share the two sides did not count the same requests.
POPULATION_SHARE = 0.10
#: Fewer scrapes than this say little of a mean.
MIN_SAMPLES = 5


def server_findings(figures: CellFigures) -> list[Finding]:
    """Findings about the requests and the TTFT that client and server count at one level."""
    return [*_other_load(figures), *_ttft(figures)]


def _other_load(figures: CellFigures) -> list[Finding]:
    """A server that has more requests than this load has sent works for somebody else, too."""
    memory, ours = figures.memory, figures.throughput.mean_in_flight
    if memory is None or memory.running is None or ours is None or memory.samples < MIN_SAMPLES:
        return []
    # a server that was lost keeps its last count, of requests that have failed
    if not figures.window.complete:
        return []
    theirs = memory.running.mean + (memory.waiting.mean if memory.waiting is not None else 0.0)
    if theirs - ours <= max(1.0, POPULATION_SHARE * ours):
        return []
    return [
        Finding(
            code="other_load",
            severity="warning",
            text=f"The server had {theirs:,.1f} requests on average while {ours:,.1f} of this "
            "load were in flight: others load it too.",
            remedy="Measure it alone: every figure of this level is of both loads.",
            cell=figures.cell,
        )
    ]


def _ttft(figures: CellFigures) -> list[Finding]:
    both = figures.server_ttft
    if both is None:
        return []
    limit_s = max(TTFT_FLOOR_S, TTFT_SHARE * both.server_mean_s)
    if both.difference_s <= limit_s or not _comparable(both):
        return []
    text = (
        f"The mean TTFT of {both.client_n:,} requests was {both.client_mean_s * 1000:,.0f} ms "
        f"here and {both.server_mean_s * 1000:,.0f} ms by the server's own count of "
        f"{both.server_n:,}: {both.difference_s * 1000:,.0f} ms lie outside its clock"
    )
    if both.queue_mean_s is not None:
        text += f" (of its own {both.queue_mean_s * 1000:,.0f} ms were queueing)"
    return [
        Finding(
            code="ttft_beyond_server",
            severity="note",
            text=f"{text}.",
            remedy="Look at what a request meets before the engine and its first token after "
            "it: connections, TLS, proxies, the server's HTTP front end, a busy machine.",
            cell=figures.cell,
        )
    ]


def _comparable(both: ServerTtft) -> bool:
    """Whether both sides counted about the same requests; else other clients load it too."""
    return abs(both.server_n - both.client_n) <= POPULATION_SHARE * both.client_n
