"""The working of a plan, step by step: every figure as an equation with numbers and units."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.kv.bytes import kv_bytes_per_token, kv_heads_per_rank, layer_bytes
from harness.kv.layers import Layer
from harness.kv.layouts import Costs, LayoutName
from harness.kv.spec import ModelSpec
from harness.kv.units import counted, exact


def token_steps(costs: Costs) -> list[str]:
    """How bytes per token, and bytes fixed per request, come about."""
    spec, tp = costs.spec, costs.engine.tp
    steps = []
    for layer, count in Counter(spec.layers).items():
        if layer.grows:
            steps.append(_growing_step(layer, count, costs))
    total = kv_bytes_per_token(spec, costs.kv_dtype, tp)
    rank = " on one rank" if tp > 1 else ""
    steps.append(f"bytes per token{rank} = {total:,} B")
    shared = sum(layer.kind == "shared" for layer in spec.layers)
    if shared:
        read = "reads" if shared == 1 else "read"
        steps.append(f"{counted(shared, 'layer')} {read} the cache of others: 0 B")
    steps += _fixed_steps(costs)
    return steps


def _growing_step(layer: Layer, count: int, costs: Costs) -> str:
    spec, tp = costs.spec, costs.engine.tp
    each = layer_bytes(layer, spec, costs.dtype, tp)
    window = f", last {counted(layer.window, 'token')}" if layer.window else ""
    head = f"{counted(count, f'{layer.kind} layer')}{window}: "
    if layer.kind == "latent":
        split = ", the same on every rank" if tp > 1 else ""
        working = f"{counted(layer.k_dim, 'latent element')}{split} x {costs.dtype.element}"
    else:
        heads = kv_heads_per_rank(layer.kv_heads, spec.heads, tp)
        working = f"{_rank_heads(layer.kv_heads, heads, tp)} x {_width(layer)} x "
        working += costs.dtype.element
    return f"{head}{working} = {each:,} B per token and layer, x {count} = {each * count:,} B"


def _rank_heads(kv_heads: int, heads: int, tp: int) -> str:
    if tp == 1:
        return counted(heads, "KV head")
    copies = f", each kept on {tp // kv_heads} ranks" if tp > kv_heads else ""
    return f"max(1, {kv_heads} / {tp}) = {counted(heads, 'KV head')} per rank{copies}"


def _width(layer: Layer) -> str:
    if layer.k_dim == layer.v_dim:
        return f"2 (K and V) x {layer.k_dim}"
    return f"({layer.k_dim} of K + {layer.v_dim} of V)"


def _fixed_steps(costs: Costs) -> list[str]:
    states = sum(layer.kind == "state" for layer in costs.spec.layers)
    cross = [layer for layer in costs.spec.layers if layer.kind == "cross"]
    if not costs.fixed:
        return []
    sources = []
    if states:
        sources.append(counted(states, "constant state"))
    if cross:
        sources.append(
            f"cross attention of {counted(len(cross), 'layer')} over "
            f"{counted(cross[0].positions or 0, 'position')}"
        )
    return [f"fixed bytes per request = {' + '.join(sources)} = {costs.fixed:,} B"]


def paged_steps(costs: Costs, pool_bytes: int, tokens: int) -> tuple[int, list[str]]:
    """Requests of ``tokens`` tokens that the pool holds without preemption, and why."""
    layout, engine = costs.paged, costs.engine
    steps = list(layout.notes)
    for group in layout.groups:
        steps.append(
            f"group of {counted(group.layers, f'{group.layer.kind} layer')}: "
            f"{counted(group.block_size, 'token')} per block, {group.block_bytes:,} B per block, "
            f"{counted(group.blocks(tokens, engine), 'block')} for a request of "
            f"{counted(tokens, 'token')}"
        )
    blocks = pool_bytes // layout.block_bytes
    usable = max(0, blocks - 1)
    each = layout.blocks_per_request(tokens, engine)
    fit = usable // each
    steps += [
        f"blocks = floor({pool_bytes:,} B / {layout.block_bytes:,} B) = {blocks:,}",
        f"usable blocks = {blocks:,} - 1 null block = {usable:,}",
        f"requests = floor({usable:,} / {each:,}) = {fit:,}",
    ]
    return fit, steps


def contiguous_steps(
    costs: Costs, layout: LayoutName, pool_bytes: int, tokens: int
) -> tuple[int, int | None, list[str]]:
    """As ``paged_steps``, for a layout that sets bytes aside per request.

    The second figure is that of ``dynamic`` with its copy; None for other layouts.
    """
    each, longest = costs.reserved(layout, tokens), costs.engine.max_model_len
    fit = pool_bytes // each
    of = counted(tokens, "token")
    reason = {
        "contiguous-max": f"max_model_len, {counted(longest, 'token')},",
        "contiguous-pow2": f"the next power of two of {of}, at most max_model_len {longest:,},",
        "contiguous-exact": of,
        "dynamic": f"the promised {of}",
    }[layout]
    steps = [
        f"{layout} sets aside {reason} = {exact(each)} per request",
        f"requests = floor({pool_bytes:,} B / {each:,} B) = {fit:,}",
    ]
    if layout != "dynamic":
        return fit, None, steps
    steps[-1] += ": so many the contiguous server admits by its promises"
    peak = costs.peak(layout, tokens)
    with_copy = pool_bytes // peak
    steps += [
        f"while torch.cat copies one layer's K, a request peaks at {each:,} B + "
        f"{costs.copied(tokens):,} B = {exact(peak)}",
        f"safe with the copy = floor({pool_bytes:,} B / {peak:,} B) = {with_copy:,}",
    ]
    return fit, with_copy, steps


def head_variants(spec: ModelSpec) -> list[tuple[str, ModelSpec]]:
    """The model with as many KV heads as query heads, as it is, and with a single one."""

    def with_heads(count: int) -> ModelSpec:
        layers = tuple(
            replace(layer, kv_heads=count)
            if layer.kind in ("full", "sliding", "chunked")
            else layer
            for layer in spec.layers
        )
        return replace(spec, layers=layers)

    own = {layer.kv_heads for layer in spec.growing if layer.kind != "latent"}
    if not own:
        return [("this model", spec)]
    name = "this model" if len(own) > 1 else f"this model ({counted(own.pop(), 'KV head')})"
    return [
        (f"MHA ({counted(spec.heads, 'KV head')})", with_heads(spec.heads)),
        (name, spec),
        ("MQA (1 KV head)", with_heads(1)),
    ]
