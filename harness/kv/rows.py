"""The rows of a plan's tables: one context or one layout each."""

from __future__ import annotations

from harness.kv.distribution import Lengths, mean, peaks, reserved, safe_count, safe_with_copy
from harness.kv.layouts import Costs, LayoutName
from harness.kv.plan_types import LayoutRow, Limit, TableRow


def table_row(
    price: Costs, layout: LayoutName, tokens: int, pool: int | None, most: int | None
) -> TableRow:
    """One context; ``most`` is a max_num_seqs that the user set."""
    needed, aside = price.needed(tokens), price.reserved(layout, tokens)
    if pool is None:
        return TableRow(tokens, needed, aside, None, None, None)
    if tokens > price.engine.max_model_len:
        return TableRow(tokens, needed, aside, 0, 0, "max_model_len")
    held = price.fits(layout, tokens, pool)
    limit: Limit = "kv_memory" if most is None or held <= most else "max_num_seqs"
    return TableRow(tokens, needed, aside, _capped(held, most), held, limit)


def layout_row(
    price: Costs, layout: LayoutName, of: int | Lengths, pool: int | None, most: int | None
) -> LayoutRow:
    """One layout, for requests of as many tokens as ``of`` says or drawn from its lengths."""
    if isinstance(of, Lengths):
        return _drawn_row(price, layout, of, pool)
    aside, peak = price.reserved(layout, of), price.peak(layout, of)
    held = with_copy = None
    if pool is not None:
        held = _capped(price.fits(layout, of, pool), most)
        with_copy = _capped(pool // peak, most) if layout == "dynamic" else None
    return LayoutRow(layout, aside, aside - price.needed(of), peak, held, with_copy)


def _drawn_row(price: Costs, layout: LayoutName, of: Lengths, pool: int | None) -> LayoutRow:
    needed, aside = mean(reserved(of, price, "contiguous-exact")), mean(reserved(of, price, layout))
    held = with_copy = None
    if pool is not None:
        held = safe_count(of, price, layout, pool)
        with_copy = safe_with_copy(of, price, layout, pool)
    return LayoutRow(layout, aside, aside - needed, mean(peaks(of, price, layout)), held, with_copy)


def _capped(requests: int, most: int | None) -> int:
    return requests if most is None else min(requests, most)
