"""A plan as plain text for a terminal; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from harness.kv.plan_types import Plan
from harness.kv.units import exact, gib

WIDTH = 80


def render(plan: Plan, *, all_layouts: bool = False) -> str:
    """The whole plan: verdict first, then tables, then the working."""
    sections = [
        _head(plan),
        _section("Capacity", _capacity(plan)),
        _section("Query heads and KV heads", _heads(plan)),
    ]
    if all_layouts:
        sections.append(_section(f"Layouts, {plan.tokens:,} tokens per request", _layouts(plan)))
    sections.append(_section("Working", _wrapped(plan.derivation)))
    sections.append(_section("Defaults in force", _wrapped(plan.engine.stated)))
    sections.append(_section("Warnings", _wrapped(plan.warnings)))
    return "\n\n".join(section for section in sections if section) + "\n"


def render_comparison(plans: Sequence[Plan]) -> str:
    """Several models side by side, for the same request and budget."""
    rows = [("model", *(plan.model for plan in plans))]

    def add(name: str, values: Sequence[object]) -> None:
        rows.append((name, *(_number(value) for value in values)))

    add("architecture", [plan.architecture for plan in plans])
    add("status", [plan.status for plan in plans])
    add("KV dtype", [plan.kv_dtype for plan in plans])
    add("KV B per token", [plan.kv_bytes_per_token for plan in plans])
    add("beyond every window", [plan.kv_bytes_per_token_full for plan in plans])
    add("fixed B per request", [plan.fixed_bytes_per_request for plan in plans])
    for index, row in enumerate(plans[0].table):
        add(f"needed, {row.tokens:,} tokens", [gib(p.table[index].needed_bytes) for p in plans])
    add("KV cache size, tokens", [plan.pool_tokens for plan in plans])
    add("maximum concurrency", [plan.max_concurrency for plan in plans])
    add("safe concurrency", [plan.safe_concurrency for plan in plans])
    warnings = [f"{plan.model}: {text}" for plan in plans for text in plan.warnings]
    parts = ["\n".join(_table(rows)), _section("Warnings", _wrapped(warnings))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(plan: Plan) -> str:
    rank = f", one of {plan.engine.tp} ranks" if plan.engine.tp > 1 else ""
    many = "1 request" if plan.batch == 1 else f"{plan.batch:,} requests"
    lines = [
        f"{plan.model}: {plan.architecture} ({plan.status}), KV in {plan.kv_dtype}{rank}",
        f"  KV cache per token     {exact(plan.kv_bytes_per_token)}",
    ]
    if plan.kv_bytes_per_token_full != plan.kv_bytes_per_token:
        lines.append(f"  beyond every window    {exact(plan.kv_bytes_per_token_full)} per token")
    if plan.fixed_bytes_per_request:
        lines.append(f"  fixed per request      {exact(plan.fixed_bytes_per_request)}")
    lines += [
        f"  {many} of {plan.tokens:,} tokens",
        f"    needed               {exact(plan.needed_bytes)}",
        f"    reserved ({plan.layout})".ljust(25) + exact(plan.reserved_bytes),
    ]
    if plan.safe_concurrency is not None:
        lines.append(f"  safe concurrency       {plan.safe_concurrency:,} requests at once")
    if plan.max_concurrency is not None:
        lines += _fold(
            f"  vLLM's log would say   KV cache size: {plan.pool_tokens:,} tokens, maximum "
            f"concurrency for {plan.engine.max_model_len:,} tokens per request: "
            f"{plan.max_concurrency:.2f}x",
            width=WIDTH,
            indent=25,
        )
    return "\n".join(lines)


def _capacity(plan: Plan) -> list[str]:
    rows = [("tokens", "needed", f"reserved ({plan.layout})", "requests", "prefill", "attention")]
    flops = {row.tokens: row for row in plan.prefill}
    for row in plan.table:
        work = flops.get(row.tokens)
        rows.append(
            (
                f"{row.tokens:,}",
                gib(row.needed_bytes),
                gib(row.reserved_bytes),
                _number(row.requests),
                "-" if work is None else _flops(work.total),
                "-" if work is None else _flops(work.attention),
            )
        )
    lines = _table(rows)
    low, high = plan.table[-2], plan.table[-1]
    growth = f"twice the context ({low.tokens:,} to {high.tokens:,}): "
    growth += f"{high.needed_bytes / low.needed_bytes:.2f} times the cache"
    if low.tokens in flops and flops[low.tokens].attention:
        ratio = flops[high.tokens].attention / flops[low.tokens].attention
        growth += f", {ratio:.2f} times the attention of a prefill"
    return [*lines, *_wrapped([growth])]


def _heads(plan: Plan) -> list[str]:
    own = plan.kv_bytes_per_token * (1 if plan.engine.tp == 1 else 0)
    rows = [("", "KV B per token", "to this model")]
    for variant in plan.comparison:
        ratio = f"{variant.kv_bytes_per_token / own:.2f} x" if own else "-"
        rows.append((variant.name, f"{variant.kv_bytes_per_token:,}", ratio))
    return _table(rows) if len(rows) > 2 else []


def _layouts(plan: Plan) -> list[str]:
    rows = [("layout", "reserved", "waste", "of reserved", "requests")]
    for row in plan.layouts:
        share = row.waste_bytes / row.reserved_bytes if row.reserved_bytes else 0.0
        rows.append(
            (
                row.layout,
                gib(row.reserved_bytes),
                gib(row.waste_bytes),
                f"{share:.1%}",
                _number(row.requests),
            )
        )
    return _table(rows)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _wrapped(lines: Sequence[str]) -> list[str]:
    """Sentences of a section folded to the terminal's width, the rest of each set in."""
    return [part for line in lines for part in _fold(line, width=WIDTH - 2, indent=4)]


def _fold(line: str, *, width: int, indent: int) -> list[str]:
    """``line`` in lines of ``width``, broken at spaces; a longer word stays whole."""
    first, *words = line.split(" ")
    folded = [first]
    for word in words:
        if len(folded[-1]) + 1 + len(word) > width:
            folded.append(" " * indent + word)
        else:
            folded[-1] += f" {word}"
    return folded


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns aligned right, the first one left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _flops(amount: int) -> str:
    """``3.42 GFLOP``."""
    for factor, unit in ((10**15, "PFLOP"), (10**12, "TFLOP"), (10**9, "GFLOP")):
        if amount >= factor:
            return f"{amount / factor:,.2f} {unit}"
    return f"{amount / 10**6:,.2f} MFLOP"
