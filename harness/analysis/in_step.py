"""Whether requests are in step, from the records: what a paged pool had to hold over time.

Requests that start together and are equally long also end together: at their last step all of
them need their full length at once, as the worst case says. Out of step their sum stays near
its mean. Which of the two a level was is read off its records: what its requests needed, blocks
for each token that had arrived, beside what as many would need in step and out of step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.summary_types import Window
from harness.analysis.table import CellTable, Floats
from harness.analysis.throughput import output_tokens, prompt_tokens
from harness.analysis.windows import clip_steps
from harness.kv.steady_capacity import OVERFLOW, Demand, overflow_share

#: fewer requests in flight tell no pattern
MIN_USERS = 4


@dataclass(frozen=True)
class Pattern:
    """What the requests of a level needed in 99 % of its time, in blocks, and would have needed."""

    users: int
    needed: float
    in_step: float
    out_of_step: float

    @property
    def share(self) -> float | None:
        """0: as out of step; 1: as in step; None: the two are the same."""
        if self.in_step - self.out_of_step < 1.0:
            return None
        return (self.needed - self.out_of_step) / (self.in_step - self.out_of_step)


def pattern(
    table: CellTable, window: Window, block_size: int, demand: Demand, full: float
) -> Pattern | None:
    """The pattern of one level at which nobody waited; None where it cannot be told.

    ``demand`` is that of one request out of step; ``full`` its blocks at its last step.
    """
    users = window.users
    if users < MIN_USERS or window.span is None or not table.n:
        return None
    times, blocks = needed_blocks(table, block_size)
    if not times.size:
        return None
    start, end = window.span
    at, held = clip_steps(times, blocks, start, end)
    lengths = np.diff(np.append(at, end))
    order = np.argsort(held)
    passed = np.cumsum(lengths[order])
    place = int(np.searchsorted(passed, (1.0 - OVERFLOW) * passed[-1]))
    needed = float(held[order][min(place, held.size - 1)])
    return Pattern(users, needed, users * full, float(likely_most(demand, users)))


def needed_blocks(table: CellTable, block_size: int) -> tuple[Floats, Floats]:
    """Blocks that the requests in flight need, as a step function: (times, blocks from then on).

    From its sending on a request needs blocks for its prompt; with k tokens received the next
    step stores prompt + k; with its last token it needs none.
    """
    rows = np.flatnonzero(~np.isnan(table.sent_s))
    if not rows.size:
        return np.empty(0), np.empty(0)
    prompt = prompt_tokens(table)
    ends = np.where(table.ok & ~np.isnan(table.last_s), table.sent_s + table.last_s, table.end_s)
    first = np.ceil(prompt[rows] / block_size)
    owners = table.token_rows()
    weights = table.token_weights()
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    before = sums[:-1] - sums[table.offsets[:-1]][owners]
    # the last token is never stored
    most = np.maximum(output_tokens(table)[owners] - 1, 0)
    grown = [
        np.ceil((prompt[owners] + np.minimum(count, most)) / block_size)
        for count in (before, before + weights)
    ]
    added = grown[1] - grown[0]
    places = np.flatnonzero(added)
    at = table.token_times_s()[places]
    # what a request holds at its end: its prompt's blocks and all that were added
    held = first + np.bincount(owners[places], added[places], table.n)[rows]
    times = np.concatenate([table.sent_s[rows], at, ends[rows]])
    steps = np.concatenate([first, added[places], -held])
    order = np.lexsort((steps, times))
    return times[order], np.cumsum(steps[order])


def likely_most(demand: Demand, users: int) -> int:
    """Blocks within which ``users`` requests out of step stay in 99 % of the time."""
    low, high = users * demand.sizes[0], users * demand.sizes[-1]
    while low < high:
        middle = (low + high) // 2
        if overflow_share(demand, users, middle) <= OVERFLOW:
            high = middle
        else:
            low = middle + 1
    return low
