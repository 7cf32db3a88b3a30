"""The samples of a level's queue, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdmissionCounts:
    """What the window's samples show; each sample is in at most one of the first two."""

    #: a request waits for KV memory
    starved: int
    #: a request waits while max_num_seqs run
    seated: int
    #: a request waits, for whatever
    waits: int
    samples: int
    preemptions: float
    #: correlation of a sample that shows requests kept out with the next; None where all
    #: samples are alike
    alike: float | None

    @property
    def kept_out(self) -> int:
        """Samples in which requests are kept out, for memory or at max_num_seqs."""
        return self.starved + self.seated
