"""``plan``: what a model's KV cache costs, and how many requests fit in a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.errors import ModelConfigError, OptionError
from harness.kv.bytes import kv_bytes_per_token, kv_bytes_per_token_full
from harness.kv.dtypes import PLAIN_BITS
from harness.kv.engine import Engine, EngineOptions, resolve_engine
from harness.kv.explain import head_variants, token_steps
from harness.kv.families.latent import expanded_elements
from harness.kv.flops import PrefillFlops, prefill_flops
from harness.kv.layouts import LAYOUTS, Costs, LayoutName, costs
from harness.kv.plan_types import TABLE_TOKENS, LayoutRow, Plan, PlanOptions, TableRow, Variant
from harness.kv.sizing import as_logged, pool_of, safe_capacity
from harness.kv.spec import ModelSpec, TextConfig, read_spec, text_config
from harness.kv.weights import Parameters, count_parameters


def plan(config: Mapping[str, object], options: PlanOptions, model: str = "config") -> Plan:
    """Compute the plan of a parsed ``config.json``.

    Raises ModelConfigError for a config that cannot be computed, OptionError for an
    option that is wrong, and UsageError when the weights do not fit.
    """
    text = text_config(config)
    warnings: list[str] = []
    spec = _with_dtype(read_spec(config), options, warnings)
    spec = _with_state_dtype(spec, options.engine, warnings)
    warnings += spec.notes
    warnings += _expansion_note(text, spec)
    engine = _engine(spec, options)
    price = costs(spec, options.kv_dtype, engine)
    tokens = _request_tokens(options, engine)
    parameters = _parameters(text, spec, warnings)
    budget = pool_of(text, options, price, parameters, warnings)
    pool = budget.pool_bytes if budget else None
    steps = token_steps(price)
    steps += budget.steps if budget else ()
    safe = safe_capacity(price, options, pool, tokens, warnings)
    steps += safe.derivation if safe else ()
    shown = as_logged(price, pool, warnings)
    steps += shown.steps
    if safe and options.batch > safe.requests:
        warnings.append(f"--batch {options.batch} does not fit: {safe.requests:,} requests do")
    return Plan(
        model=model,
        architecture=spec.architecture,
        status=spec.status,
        dtype=spec.dtype or "",
        kv_dtype=price.dtype.name,
        engine=engine,
        kv_bytes_per_token=kv_bytes_per_token(spec, options.kv_dtype, engine.tp),
        kv_bytes_per_token_full=kv_bytes_per_token_full(spec, options.kv_dtype, engine.tp),
        fixed_bytes_per_request=price.fixed,
        layout=options.layout,
        tokens=tokens,
        batch=options.batch,
        needed_bytes=options.batch * price.needed(tokens),
        reserved_bytes=options.batch * price.reserved(options.layout, tokens),
        table=tuple(_row(price, options.layout, size, pool) for size in TABLE_TOKENS),
        layouts=tuple(_layout_row(price, name, tokens, pool) for name in LAYOUTS),
        comparison=tuple(
            Variant(name, kv_bytes_per_token(variant, options.kv_dtype))
            for name, variant in head_variants(spec)
        ),
        prefill=_prefill(text, spec, parameters),
        parameters=parameters.total if parameters else None,
        pool_bytes=pool,
        num_blocks=shown.blocks,
        pool_tokens=shown.tokens,
        max_concurrency=shown.concurrency,
        safe_concurrency=safe.requests if safe else None,
        derivation=tuple(steps),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _with_dtype(spec: ModelSpec, options: PlanOptions, warnings: list[str]) -> ModelSpec:
    """The weights' dtype that the engine runs: vLLM's ``auto`` never runs in float32."""
    if options.dtype != "auto":
        if options.dtype not in PLAIN_BITS or PLAIN_BITS[options.dtype] < 16:
            known = [name for name, bits in PLAIN_BITS.items() if bits >= 16]
            raise OptionError("--dtype", options.dtype, f"one of auto, {', '.join(known)}")
        return replace(spec, dtype=options.dtype)
    stated = (spec.dtype or "").removeprefix("torch.")
    if stated in ("", "auto", "float32", "fp32"):
        warnings.append(
            f"the config's dtype is {stated or 'not stated'}: vLLM's auto runs it in bfloat16; "
            "--dtype float32 when yours keeps 32 bits"
        )
        return replace(spec, dtype="bfloat16")
    return spec


def _with_state_dtype(spec: ModelSpec, options: EngineOptions, warnings: list[str]) -> ModelSpec:
    """Recurrent states in the dtype that was asked for, or that vLLM takes on this device."""
    if not any(layer.kind == "state" for layer in spec.layers):
        return spec
    dtype = options.state_dtype
    if dtype is None and options.device == "cpu":
        dtype = "float32"
        warnings.append(
            "recurrent states count as float32: vLLM's choice on CPUs with AVX512-BF16; "
            "--mamba-ssm-cache-dtype for another"
        )
    if dtype is None or dtype == "auto":
        return spec
    if PLAIN_BITS.get(dtype, 0) < 16:
        raise OptionError(
            "--mamba-ssm-cache-dtype", dtype, "one of auto, float32, float16, bfloat16"
        )
    return replace(spec, layers=tuple(layer.with_state_dtype(dtype) for layer in spec.layers))


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
        f"{expanded:,} B per token: {expanded / own:.0f} times as much"
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
            option, tokens, f"1 to {engine.max_model_len:,} tokens, the longest context in force"
        )
    return tokens


def _parameters(text: TextConfig, spec: ModelSpec, warnings: list[str]) -> Parameters | None:
    """The parameter count, or None where the config's other fields do not give it."""
    try:
        return count_parameters(text, spec)
    except ModelConfigError as error:
        warnings.append(f"no parameter count, so no weights and no prefill work: {error}")
        return None


def _row(price: Costs, layout: LayoutName, tokens: int, pool: int | None) -> TableRow:
    fits = None if pool is None else price.fits(layout, tokens, pool)
    return TableRow(tokens, price.needed(tokens), price.reserved(layout, tokens), fits)


def _layout_row(price: Costs, layout: LayoutName, tokens: int, pool: int | None) -> LayoutRow:
    reserved = price.reserved(layout, tokens)
    fits = None if pool is None else price.fits(layout, tokens, pool)
    return LayoutRow(layout, reserved, reserved - price.needed(tokens), fits)


def _prefill(
    text: TextConfig, spec: ModelSpec, parameters: Parameters | None
) -> tuple[PrefillFlops, ...]:
    if parameters is None:
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
