"""When the edge of a window decides over requests/s."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.checks_bursts import most_together
from harness.analysis.run import analyse
from harness.records import Finding
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run


def notes(requests: int, level: int = 16) -> list[Finding]:
    run = build_run((PAGED,), (level,), (requests,))
    summary = analyse(run.manifest, run.records, run.events, run.series)
    return [finding for finding in summary.findings if finding.code == "few_bursts"]


def test_the_most_that_end_within_a_tenth_of_their_e2e() -> None:
    """E2E 2 s: within 0.2 s end three at 5 s; one of them and a fourth lie 0.3 s apart."""
    ends = np.array([1.0, 5.0, 5.1, 5.2, 5.4, 9.0])
    assert most_together(ends, np.full(6, 2.0)) == 3
    assert most_together(ends, np.full(6, 4.0)) == 4
    assert most_together(np.array([]), np.array([])) == 0
    assert most_together(ends, np.full(6, np.nan)) == 0


def test_few_bursts_are_a_note_with_what_the_edge_is_worth() -> None:
    """16 users in step, 100 counted requests: 99 ended, one burst of 16 is 16 % of them."""
    (found,) = notes(100)
    assert found.severity == "note"
    assert "of the 99 requests that ended in the window up to 16 ended together" in found.text
    assert "is worth 16 % of requests/s and goodput" in found.text
    assert "--ramp-up-seconds" in found.remedy


@pytest.mark.parametrize(
    ("requests", "level"),
    [
        # 16 of 200 are 8 %
        (200, 16),
        # of so few users half end together by chance
        (20, 4),
    ],
)
def test_many_bursts_and_few_users_are_none(requests: int, level: int) -> None:
    assert notes(requests, level) == []
