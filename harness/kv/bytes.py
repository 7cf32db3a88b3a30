"""Bytes that the KV cache needs: per token, per request, per rank.

bytes per token = sum over layers of KV heads x (K head_dim + V head_dim) x bytes per
element; with equal head sizes that is the textbook 2 x layers x KV heads x head_dim x
bytes. A latent layer keeps one vector and no V; constant states and cross attention are
fixed per request.
"""

from __future__ import annotations

from harness.errors import OptionError
from harness.kv.dtypes import KvDtype, cell_bytes, resolve, state_bytes
from harness.kv.layers import Layer
from harness.kv.spec import ModelSpec


def kv_heads_per_rank(kv_heads: int, heads: int, tp: int) -> int:
    """KV heads that one of ``tp`` ranks holds: at least one, so that few heads replicate.

    Raises OptionError when ``tp`` divides neither way.
    """
    if tp < 1 or heads % tp or (kv_heads % tp and tp % kv_heads):
        raise OptionError(
            "--tp",
            tp,
            f"a number that divides {heads} attention heads and fits {kv_heads} KV heads",
        )
    return max(1, kv_heads // tp)


def layer_bytes(layer: Layer, spec: ModelSpec, dtype: KvDtype, tp: int = 1) -> int:
    """Bytes of one token in one layer on one rank; 0 for a layer that keeps no tokens."""
    if layer.kind in ("state", "shared"):
        return 0
    if layer.kind == "latent":
        # every rank needs the whole latent: it is replicated, never split
        kv_heads_per_rank(1, spec.heads, tp)
        return cell_bytes(layer, 1, dtype)
    return cell_bytes(layer, kv_heads_per_rank(layer.kv_heads, spec.heads, tp), dtype)


def kv_bytes_per_token(spec: ModelSpec, kv_dtype: str = "auto", tp: int = 1) -> int:
    """Bytes that a request's first token costs over all layers that grow, on one rank."""
    dtype = resolve(kv_dtype, spec.dtype)
    return sum(layer_bytes(layer, spec, dtype, tp) for layer in spec.growing)


def kv_bytes_per_token_full(spec: ModelSpec, kv_dtype: str = "auto", tp: int = 1) -> int:
    """Bytes per token once every window is full: only layers without one still grow."""
    dtype = resolve(kv_dtype, spec.dtype)
    return sum(
        layer_bytes(layer, spec, dtype, tp) for layer in spec.growing if layer.window is None
    )


def fixed_bytes_per_request(spec: ModelSpec, kv_dtype: str = "auto", tp: int = 1) -> int:
    """Constant states, and cross attention over the encoder's positions, on one rank."""
    dtype = resolve(kv_dtype, spec.dtype)
    total = 0
    for layer in spec.layers:
        if layer.kind == "state":
            total += state_bytes(layer.state, tp, dtype)
        elif layer.kind == "cross":
            total += (layer.positions or 0) * layer_bytes(layer, spec, dtype, tp)
    return total


def needed_bytes(spec: ModelSpec, tokens: int, kv_dtype: str = "auto", tp: int = 1) -> int:
    """Bytes that one request of ``tokens`` tokens truly needs on one rank."""
    dtype = resolve(kv_dtype, spec.dtype)
    grown = sum(
        layer.tokens_held(tokens) * layer_bytes(layer, spec, dtype, tp) for layer in spec.growing
    )
    return grown + fixed_bytes_per_request(spec, kv_dtype, tp)
