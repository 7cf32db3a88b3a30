"""The latencies of one cell, and when they are not trusted."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.percentiles import AdjustedPercentiles, Distribution

#: Share of coalesced events beyond which ITL (first events: TTFT) is not trusted.
COALESCED_LIMIT = 0.01
#: Share of buffered streams beyond which TTFT, TPOT and ITL are not trusted.
BUFFERED_LIMIT = 0.01


@dataclass(frozen=True)
class LatencyFigures:
    """Latencies of the counted successes, in seconds.

    ``tpot_s`` weighs every request alike; ``itl_s`` pools the gaps between token events of
    all requests, so a long answer weighs more, and a gap may stand for several tokens
    (``tokens_per_event``). The two differ legitimately.
    """

    ttft_s: Distribution
    ttft_intended_s: Distribution
    e2e_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    first_content_s: Distribution
    ttft_adjusted_s: AdjustedPercentiles
    tpot_adjusted_s: AdjustedPercentiles
    e2e_adjusted_s: AdjustedPercentiles
    tokens_per_event: float | None
    #: share of token events, and of first ones, whose stamp is an upper bound
    coalesced_share: float | None
    first_coalesced_share: float | None
    #: share of the requests whose stream arrived nearly all at once at its end
    buffered_share: float | None
    kernel_clock_share: float | None
    #: requests left out because their times contradict each other
    broken_timelines: int

    @property
    def ttft_trusted(self) -> bool:
        """False when too many first tokens carry an upper bound or streams were buffered."""
        return (self.first_coalesced_share or 0.0) <= COALESCED_LIMIT and not self.buffered

    @property
    def itl_trusted(self) -> bool:
        """False when too many token events carry an upper bound or streams were buffered."""
        return (self.coalesced_share or 0.0) <= COALESCED_LIMIT and not self.buffered

    @property
    def tpot_trusted(self) -> bool:
        """False when TTFT is not: E2E - TTFT is then a lower bound.

        Later token events that share a read do not hurt it: only the ends enter.
        """
        return self.ttft_trusted

    @property
    def doubtful_share(self) -> float:
        """Share of the requests whose TTFT and TPOT may be those of a buffer."""
        return max(self.first_coalesced_share or 0.0, self.buffered_share or 0.0)

    @property
    def buffered(self) -> bool:
        """True when too many streams came through a buffer."""
        return (self.buffered_share or 0.0) > BUFFERED_LIMIT
