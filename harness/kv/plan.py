"""``plan``: what a model's KV cache costs, and how many requests fit in a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.errors import ModelConfigError, OptionError
from harness.kv.bytes import kv_bytes_per_token, kv_bytes_per_token_full
from harness.kv.distribution import Lengths, summary
from harness.kv.dtype_options import stored_kv_dtype, with_dtype, with_state_dtype
from harness.kv.dtypes import PLAIN_BITS
from harness.kv.effects import without_effect
from harness.kv.engine import Engine, resolve_engine
from harness.kv.explain import head_variants, token_steps
from harness.kv.families.latent import expanded_elements
from harness.kv.flops import PrefillFlops, prefill_flops
from harness.kv.layouts import LAYOUTS, NOT_SERVED, costs
from harness.kv.plan_types import TABLE_TOKENS, Plan, PlanOptions, Variant
from harness.kv.rows import layout_row, table_row
from harness.kv.sizing import as_logged, lengths_of, pool_of, safe_capacity
from harness.kv.spec import ModelSpec, TextConfig, read_spec, text_config
from harness.kv.steady_plan import steady_steps
from harness.kv.units import counted
from harness.kv.weights import Parameters, count_parameters


def plan(config: Mapping[str, object], options: PlanOptions, model: str = "config") -> Plan:
    """Compute the plan of a parsed ``config.json``.

    Raises ModelConfigError for a config that cannot be computed, OptionError for an
    option that is wrong, and UsageError when the weights do not fit.
    """
    text = text_config(config)
    warnings: list[str] = []
    spec = with_dtype(read_spec(config), options.dtype, warnings)
    spec = with_state_dtype(spec, options.engine, warnings)
    kv_dtype = stored_kv_dtype(config, options.kv_dtype, warnings)
    warnings += spec.notes
    warnings += _expansion_note(text, spec)
    warnings += without_effect(spec, options)
    contiguous = options.all_layouts or options.layout != "paged"
    if contiguous and not {layer.kind for layer in spec.layers} <= {"full"}:
        warnings.append(NOT_SERVED)
    engine = _engine(spec, options)
    price = costs(spec, kv_dtype, engine)
    lengths = lengths_of(options, engine, warnings)
    tokens = _request_tokens(options, engine) if lengths is None else None
    of = lengths or tokens or 0
    parameters = _parameters(text, spec, warnings)
    budget = pool_of(text, options, price, parameters, warnings)
    pool, most = budget.pool_bytes if budget else None, options.engine.max_num_seqs
    steps = token_steps(price)
    steps += budget.steps if budget else ()
    safe = steady = None
    if pool is not None:
        safe = safe_capacity(price, options.layout, pool, of, most, warnings)
        steps += safe.steps
        if options.batch > safe.requests:
            do = f"{counted(safe.requests, 'request')} {'does' if safe.requests == 1 else 'do'}"
            warnings.append(f"--batch {options.batch:,} does not fit: {do}")
        pairs = _pairs(options, lengths)
        if pairs:
            steady, working = steady_steps(price, options.layout, pool, pairs, most)
            steps += working
    shown = as_logged(price, pool, warnings)
    steps += shown.steps
    layouts = tuple(layout_row(price, name, of, pool, most) for name in LAYOUTS)
    own = next(row for row in layouts if row.layout == options.layout)
    return Plan(
        model=model,
        architecture=spec.architecture,
        status=spec.status,
        dtype=spec.dtype or "",
        kv_dtype=price.dtype.name,
        engine=engine,
        kv_bytes_per_token=kv_bytes_per_token(spec, kv_dtype, engine.tp),
        kv_bytes_per_token_full=kv_bytes_per_token_full(spec, kv_dtype, engine.tp),
        fixed_bytes_per_request=price.fixed,
        layout=options.layout,
        tokens=tokens,
        batch=options.batch,
        needed_bytes=options.batch * (own.reserved_bytes - own.waste_bytes),
        reserved_bytes=options.batch * own.reserved_bytes,
        peak_bytes=options.batch * own.peak_bytes,
        lengths=summary(lengths, price, options.layout) if lengths else None,
        table=tuple(table_row(price, options.layout, size, pool, most) for size in TABLE_TOKENS),
        layouts=layouts,
        comparison=tuple(
            Variant(name, kv_bytes_per_token(variant, kv_dtype, engine.tp))
            for name, variant in head_variants(spec)
        ),
        prefill=_prefill(text, spec, parameters),
        parameters=None if isinstance(parameters, str) else parameters.total,
        pool_bytes=pool,
        num_blocks=shown.blocks,
        pool_tokens=shown.tokens,
        max_concurrency=shown.concurrency,
        safe_concurrency=safe.requests if safe else None,
        safe_with_copy=safe.with_copy if safe else None,
        derivation=tuple(steps),
        warnings=tuple(dict.fromkeys(warnings)),
        steady_concurrency=steady.requests if steady else None,
        steady_overflow=steady.overflow if steady else None,
        measured=options.measured.lines() if options.measured else (),
    )


def _expansion_note(text: TextConfig, spec: ModelSpec) -> list[str]:
    """What a latent model costs on an engine that expands K and V before it caches them."""
    latents = [layer for layer in spec.layers if layer.kind == "latent"]
    if not latents or not text.fields.has("qk_nope_head_dim"):
        return []
    bits = PLAIN_BITS[spec.dtype or "float16"]
    expanded = len(latents) * expanded_elements(text.fields) * bits // 8
    own = sum(layer.k_dim for layer in latents) * bits // 8
    return [
        f"an engine that expands the latent before caching, as older transformers did, keeps "
        f"{expanded:,} B per token: {expanded / own:.3g} times as much"
    ]


def _engine(spec: ModelSpec, options: PlanOptions) -> Engine:
    engine = replace(options.engine, device_bytes=options.vram_bytes)
    if spec.max_positions is None and engine.max_model_len is None:
        asked = options.context or (options.prompt_tokens or 0) + (options.output_tokens or 0)
        if asked > 2048:
            engine = replace(engine, max_model_len=asked)
    return resolve_engine(spec, engine)


def _request_tokens(options: PlanOptions, engine: Engine) -> int:
    """Tokens of the request in question; the whole context when nothing was said."""
    option, tokens = "--max-model-len", engine.max_model_len
    if options.context is not None:
        option, tokens = "--context", options.context
    elif options.prompt_tokens is not None:
        option = "--prompt-tokens + --output-tokens"
        tokens = options.prompt_tokens + (options.output_tokens or 0)
    if not 1 <= tokens <= engine.max_model_len:
        raise OptionError(
            option,
            tokens,
            f"1 to {counted(engine.max_model_len, 'token')}, the longest context in force",
        )
    return tokens


def _pairs(options: PlanOptions, lengths: Lengths | None) -> tuple[tuple[int, int], ...]:
    """(prompt, output) of the requests in question; empty where the split is not known."""
    if lengths is not None:
        return lengths.pairs
    if options.prompt_tokens is None:
        return ()
    return ((options.prompt_tokens, options.output_tokens or 0),)


def _parameters(text: TextConfig, spec: ModelSpec, warnings: list[str]) -> Parameters | str:
    """The parameter count, or why the config's other fields do not give it."""
    try:
        return count_parameters(text, spec)
    except ModelConfigError as error:
        warnings.append(f"no parameter count, so no weights and no prefill work: {error}")
        return str(error)


def _prefill(
    text: TextConfig, spec: ModelSpec, parameters: Parameters | str
) -> tuple[PrefillFlops, ...]:
    if isinstance(parameters, str):
        return ()
    latent = any(layer.kind == "latent" for layer in spec.layers)
    expanded = None
    if latent and text.fields.has("qk_nope_head_dim"):
        expanded = expanded_elements(text.fields)
    return tuple(
        prefill_flops(
            tokens,
            layers=spec.layers,
            heads=spec.heads,
            latent_elements=expanded,
            active_parameters=parameters.active,
            output_parameters=parameters.output,
        )
        for tokens in TABLE_TOKENS
    )
