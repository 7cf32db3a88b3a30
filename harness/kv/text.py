"""A plan as plain text for a terminal; no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.errors import printable, shortened
from harness.kv.distribution import LengthSummary, Spread
from harness.kv.fold import WIDTH, bound, fold, section, table, wrapped
from harness.kv.plan_types import Plan, TableRow
from harness.kv.steady_capacity import OVERFLOW
from harness.kv.units import counted, exact, short_size

#: where the values of the head begin
COLUMN = 25


def render(plan: Plan, *, all_layouts: bool = False, width: int = WIDTH) -> str:
    """The whole plan: verdict first, then tables, then the working."""
    sections = [
        "\n".join(_head(plan, width)),
        section(f"Capacity, {plan.layout}", _capacity(plan, width)),
        section("Query heads and KV heads", _heads(plan, width)),
    ]
    if all_layouts:
        of = "means over the lengths"
        if plan.tokens is not None:
            of = f"{counted(plan.tokens, 'token')} per request"
        sections.append(section(f"Layouts, {of}", _layouts(plan, width)))
    sections.append(section("Measured", wrapped(plan.measured, width)))
    sections.append(section("Working", wrapped(plan.derivation, width)))
    sections.append(section("Defaults in force", wrapped(plan.engine.stated, width)))
    sections.append(section("Warnings", wrapped(plan.warnings, width)))
    return "\n\n".join(part for part in sections if part) + "\n"


def render_comparison(plans: Sequence[Plan], width: int = WIDTH) -> str:
    """Several models side by side, for the same request and budget."""
    names = [printable(plan.model) for plan in plans]
    rows = [("model", *names)]

    def add(name: str, values: Sequence[object]) -> None:
        rows.append((name, *(_number(value) for value in values)))

    add("architecture", [_architecture(plan) for plan in plans])
    add("status", [plan.status for plan in plans])
    add("KV dtype", [plan.kv_dtype for plan in plans])
    add("KV B per token", [plan.kv_bytes_per_token for plan in plans])
    add("beyond every window", [plan.kv_bytes_per_token_full for plan in plans])
    add("fixed B per request", [plan.fixed_bytes_per_request for plan in plans])
    for index, row in enumerate(plans[0].table):
        needed = [short_size(plan.table[index].needed_bytes) for plan in plans]
        add(f"needed, {row.tokens:,} tokens", needed)
    add("KV cache size, tokens", [plan.pool_tokens for plan in plans])
    add("maximum concurrency", [plan.max_concurrency for plan in plans])
    if plans[0].lengths is None:
        add("request, tokens", [plan.tokens for plan in plans])
    add("safe concurrency", [plan.safe_concurrency for plan in plans])
    if any(plan.steady_concurrency is not None for plan in plans):
        add("steady state", [plan.steady_concurrency for plan in plans])
    warnings = [
        f"{name}: {text}" for name, plan in zip(names, plans, strict=True) for text in plan.warnings
    ]
    parts = ["\n".join(table(rows)), section("Warnings", wrapped(warnings, width))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(plan: Plan, width: int) -> Iterator[str]:
    rank = f", one of {plan.engine.tp} ranks" if plan.engine.tp > 1 else ""
    title = f"{printable(plan.model)}: {_architecture(plan)} ({plan.status}), "
    title += bound(f"KV in {plan.kv_dtype}{rank}")
    yield from fold(title, width=width, indent=4)
    yield _fact("KV cache per token", exact(plan.kv_bytes_per_token))
    if plan.kv_bytes_per_token_full != plan.kv_bytes_per_token:
        beyond = f"{exact(plan.kv_bytes_per_token_full)} per token"
        yield _fact("beyond every window", beyond)
    if plan.fixed_bytes_per_request:
        yield _fact("fixed per request", exact(plan.fixed_bytes_per_request))
    yield from _request(plan, width)
    yield from _safe(plan, width)
    if plan.max_concurrency is not None:
        log = (
            f"KV cache size: {plan.pool_tokens:,} tokens, maximum concurrency for "
            f"{plan.engine.max_model_len:,} tokens per request: {plan.max_concurrency:.2f}x"
        )
        yield from fold(_fact("vLLM's log would say", log), width=width, indent=COLUMN)


def _architecture(plan: Plan) -> str:
    return shortened(printable(plan.architecture))


def _fact(name: str, value: str, deeper: int = 0) -> str:
    return f"  {' ' * deeper}{name} ".ljust(COLUMN) + value


def _request(plan: Plan, width: int) -> Iterator[str]:
    """The requests in question and their bytes."""
    if plan.lengths is not None:
        yield from _lengths(plan.lengths, plan.layout, width)
        if plan.batch == 1:
            return
    many = counted(plan.batch, "request")
    of = "of mean length" if plan.tokens is None else f"of {counted(plan.tokens, 'token')}"
    yield f"  {many} {of}"
    yield _fact("needed", exact(plan.needed_bytes), 2)
    yield _fact(f"reserved ({plan.layout})", exact(plan.reserved_bytes), 2)
    if plan.peak_bytes != plan.reserved_bytes:
        yield _fact("peak, with a copy", exact(plan.peak_bytes), 2)


def _lengths(lengths: LengthSummary, layout: str, width: int) -> Iterator[str]:
    """What the requests of a file are, in tokens and in bytes."""
    left_out = f", {lengths.left_out:,} left out" if lengths.left_out else ""
    title = f"  {counted(lengths.requests, 'length')} of {printable(lengths.source)}{left_out}"
    yield from fold(title, width=width, indent=4)
    yield from _spread("prompt and output", lengths.tokens, width)
    yield from _spread("prompt", lengths.prompt_tokens, width)
    yield from _spread("output", lengths.output_tokens, width)
    for name, spread in (
        ("needed", lengths.needed_bytes),
        (f"reserved ({layout})", lengths.reserved_bytes),
    ):
        sizes = f"mean {exact(int(spread.mean))}, longest {short_size(spread.most)}"
        yield from fold(_fact(name, sizes, 2), width=width, indent=COLUMN)


def _spread(name: str, spread: Spread, width: int) -> Iterator[str]:
    p99 = "" if spread.p99 is None else f", p99 {spread.p99:,.1f}"
    shown = (
        f"{spread.least:,} to {counted(spread.most, 'token')}, mean {spread.mean:,.1f}, "
        f"median {spread.median:,.1f}{p99}"
    )
    if spread.least == spread.most:
        shown = f"{counted(spread.most, 'token')} each"
    yield from fold(_fact(name, shown, 2), width=width, indent=COLUMN)


def _safe(plan: Plan, width: int) -> Iterator[str]:
    if plan.safe_concurrency is None:
        return
    drawn = " in 99% of draws" if plan.lengths is not None else ""
    admitted = " (as the contiguous server admits)" if plan.layout == "dynamic" else ""
    safe = f"{counted(plan.safe_concurrency, 'request')} at once{drawn}{admitted}"
    yield from fold(_fact("safe concurrency", safe), width=width, indent=COLUMN)
    if plan.safe_with_copy is not None:
        copied = f"{counted(plan.safe_with_copy, 'request')} at once{drawn}"
        yield _fact("safe with the copy", copied)
    if plan.steady_concurrency is not None:
        steady = f"{counted(plan.steady_concurrency, 'request')} at once, out of step: "
        steady += f"beyond the pool in at most {OVERFLOW:.0%} of the time"
        yield from fold(_fact("steady state", steady), width=width, indent=COLUMN)


def _capacity(plan: Plan, width: int) -> list[str]:
    rows = [("tokens", "needed", "reserved", "requests", "prefill", "attention")]
    flops = {row.tokens: row for row in plan.prefill}
    marked = any(_mark(row) for row in plan.table)
    for row in plan.table:
        work = flops.get(row.tokens)
        rows.append(
            (
                f"{row.tokens:,}",
                short_size(row.needed_bytes),
                short_size(row.reserved_bytes),
                _number(row.requests) + (_mark(row) or " " if marked else ""),
                "-" if work is None else _flops(work.total),
                "-" if work is None else _flops(work.attention),
            )
        )
    low, high = plan.table[-2], plan.table[-1]
    growth = (
        f"twice the context ({low.tokens:,} to {high.tokens:,}): "
        f"{high.needed_bytes / low.needed_bytes:.2f} times the cache"
    )
    if low.tokens in flops and flops[low.tokens].attention:
        ratio = flops[high.tokens].attention / flops[low.tokens].attention
        growth += f", {ratio:.2f} times the attention of a prefill"
    return [*table(rows), *wrapped([*_footnotes(plan), growth], width)]


def _mark(row: TableRow) -> str:
    return {"max_num_seqs": "*", "max_model_len": "!"}.get(row.limit or "", "")


def _footnotes(plan: Plan) -> Iterator[str]:
    """What decides a number of requests where it is not the memory."""
    limits = {row.limit for row in plan.table}
    seqs = plan.engine.max_num_seqs
    if "max_num_seqs" in limits:
        yield f"* max_num_seqs {seqs:,} decides: the memory holds more"
    elif plan.layout == "paged" and any((row.requests or 0) > seqs for row in plan.table):
        yield (
            f"vLLM's default max_num_seqs runs {seqs:,} at once: more than that need "
            "--max-num-seqs raised"
        )
    if "max_model_len" in limits:
        longest = counted(plan.engine.max_model_len, "token")
        yield f"! longer than max_model_len, {longest}: such a request is refused"


def _heads(plan: Plan, width: int) -> list[str]:
    own = plan.kv_bytes_per_token
    rank = " and rank" if plan.engine.tp > 1 else ""
    rows = [("", f"KV B per token{rank}", "to this model")]
    for variant in plan.comparison:
        times = variant.kv_bytes_per_token / own if own else 0.0
        ratio = f"{times:.3g} x" if 0 < times < 0.1 else f"{times:.2f} x" if own else "-"
        rows.append((variant.name, f"{variant.kv_bytes_per_token:,}", ratio))
    if len(rows) <= 2:
        return []
    notes = ["a rank keeps one KV head at least: the one of MQA is on every rank"]
    return [*table(rows), *(wrapped(notes, width) if rank else ())]


def _layouts(plan: Plan, width: int) -> list[str]:
    rows = [("layout", "reserved", "waste", "of reserved", "requests")]
    notes = []
    for row in plan.layouts:
        share = row.waste_bytes / row.reserved_bytes if row.reserved_bytes else 0.0
        rows.append(
            (
                row.layout,
                short_size(row.reserved_bytes),
                short_size(row.waste_bytes),
                f"{share:.1%}",
                _number(row.requests),
            )
        )
        if row.layout == "dynamic":
            copied = exact(row.peak_bytes - row.reserved_bytes)
            note = f"dynamic: {copied} more per request while torch.cat copies one layer's K"
            if row.requests_with_copy is not None:
                note += f"; safe with the copy: {counted(row.requests_with_copy, 'request')}"
            notes.append(note)
    notes.append("contiguous-pow2: the next power of two of tokens, at most max_model_len")
    return [*table(rows), *wrapped(notes, width)]


def _number(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _flops(amount: int) -> str:
    """``3.42 GFLOP``: three digits or more."""
    for factor, unit in ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP")):
        if amount >= factor:
            return f"{amount / factor:,.2f} {unit}"
    return f"{amount / 10**6:,.2f} MFLOP"
