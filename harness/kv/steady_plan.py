"""The steady capacity of a plan: requests out of step, for a layout and its pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.kv.layouts import Costs, LayoutName
from harness.kv.steady_capacity import (
    Steady,
    growing_demand,
    reserved_demand,
    steady_padded,
    steady_requests,
    steady_text,
)

Pairs = Sequence[tuple[int, int]]


def steady_steps(
    price: Costs, layout: LayoutName, pool: int, pairs: Pairs, most: int | None
) -> tuple[Steady, tuple[str, ...]]:
    """Requests of these (prompt, output) lengths that ``pool`` bytes hold out of step, and why.

    ``most`` is a max_num_seqs that the user set.
    """
    if layout == "paged":
        size = math.gcd(*(group.block_size for group in price.paged.groups))
        demand = growing_demand(
            pairs, lambda tokens: price.paged.blocks_per_request(tokens, price.engine), size
        )
        usable = max(0, pool // price.paged.block_bytes - 1)
        found = steady_requests(demand, usable, most=most)
        return found, steady_text(found, usable, "blocks")
    demand = reserved_demand(pairs, lambda tokens: price.reserved(layout, tokens))
    padded = layout == "dynamic"
    found = (steady_padded if padded else steady_requests)(demand, pool, most=most)
    return found, steady_text(found, pool, "B", padded=padded)
