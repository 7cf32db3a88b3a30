"""Parameters and weight bytes from the config alone, when no weight file tells.

Attention: Q and O are hidden x query width, K and V hidden x KV width. Feed-forward:
three matrices when gated, else two; experts multiply it, of which each token passes a
few. Norms, biases and small convolutions are left out: well below one percent.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import ModelConfigError, shortened
from harness.kv.dtypes import PLAIN_BITS
from harness.kv.fields import HIDDEN, LAYERS, Fields
from harness.kv.layers import RECURRENT, Layer
from harness.kv.spec import ModelSpec, TextConfig

INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "d_inner")
EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk")
#: bits per weight that a quantisation method stores, scales included
METHOD_BITS = {"fp8": 8.0, "mxfp4": 4.25, "fbgemm_fp8": 8.0, "modelopt": 8.0, "awq": 4.15}


@dataclass(frozen=True)
class Parameters:
    """Counted from the config; ``active`` is what one token passes, without the embedding."""

    total: int
    active: int
    embedding: int
    output: int
    hidden: int
    vocab: int
    #: the widest activation per token inside a layer
    widest: int
    working: str


@dataclass(frozen=True)
class _Mlp:
    total: int
    active: int
    widest: int


def count_parameters(text: TextConfig, spec: ModelSpec) -> Parameters:
    """Count a model's parameters; raises ModelConfigError when the hidden size is missing."""
    fields = text.fields
    hidden = fields.need("the hidden size", *HIDDEN)
    vocab = fields.integer("vocab_size", "padded_vocab_size") or 0
    tied = fields.flag("tie_word_embeddings", absent=bool(text.family and text.family.tied))
    attention = sum(_mixer(layer, fields, spec, hidden) for layer in spec.layers)
    blocks = _blocks(fields, spec)
    mlp = _mlp(text, hidden, blocks)
    embedding, output = vocab * hidden, vocab * hidden
    total = attention + mlp.total + embedding + (0 if tied else output)
    if fields.has("encoder_layers"):
        total += _encoder(fields, hidden)
    working = (
        f"parameters = {attention:,} attention + {mlp.total:,} feed-forward + "
        f"{embedding:,} embedding{'' if tied else f' + {output:,} output'} = {total:,}"
    )
    return Parameters(
        total=total,
        active=attention + mlp.active,
        embedding=embedding,
        output=output,
        hidden=hidden,
        vocab=vocab,
        widest=mlp.widest,
        working=working,
    )


def weight_bits(text: TextConfig, dtype: str) -> float:
    """Bits per weight: the quantisation's when the config names one, else the dtype's.

    Raises ModelConfigError for a number of bits that no weight has.
    """
    quantised = text.fields.config.get("quantization_config")
    if isinstance(quantised, dict):
        bits = quantised.get("bits")
        if isinstance(bits, int) and not isinstance(bits, bool):
            if not 1 <= bits <= 64:
                raise ModelConfigError(
                    f"quantization_config: bits is {shortened(str(bits))}; expected 1 to 64"
                )
            # group scales and zero points add about 16 bits per 128 weights
            return bits + 0.15
        if quantised.get("load_in_4bit"):
            return 4.15
        if quantised.get("load_in_8bit"):
            return 8.0
        method = str(quantised.get("quant_method", ""))
        if method in METHOD_BITS:
            return METHOD_BITS[method]
    return float(PLAIN_BITS.get(dtype, 16))


def _mixer(layer: Layer, fields: Fields, spec: ModelSpec, hidden: int) -> int:
    """Parameters of one layer's attention, or of what stands in its place."""
    if layer.kind == "latent":
        return _latent(fields, spec, hidden)
    if layer.kind == "state":
        recurrent = next((part for part in layer.state if part.name == RECURRENT), None)
        width = 4 * hidden if recurrent is None else 6 * hidden
        return hidden * width
    if layer.kind == "shared":
        return 2 * hidden * hidden
    query = hidden * spec.heads * layer.k_dim
    return 2 * query + hidden * layer.kv_heads * (layer.k_dim + layer.v_dim)


def _latent(fields: Fields, spec: ModelSpec, hidden: int) -> int:
    rank = fields.integer("kv_lora_rank") or 0
    rotary = fields.integer("qk_rope_head_dim", minimum=0) or 0
    nope = fields.integer("qk_nope_head_dim", minimum=0) or 0
    value = fields.integer("v_head_dim") or nope
    query_rank = fields.integer("q_lora_rank")
    query_width = spec.heads * (nope + rotary)
    query = hidden * query_width
    if query_rank is not None:
        query = hidden * query_rank + query_rank * query_width
    latent = hidden * (rank + rotary) + rank * spec.heads * (nope + value)
    return query + latent + spec.heads * value * hidden


def _blocks(fields: Fields, spec: ModelSpec) -> int:
    """Decoder blocks that have a feed-forward part."""
    pattern = fields.text("hybrid_override_pattern")
    if pattern is not None:
        return sum(mark in "-E" for mark in pattern)
    names = ("decoder_layers",) if fields.has("decoder_layers") else LAYERS
    return fields.integer(*names) or len(spec.layers)


def _mlp(text: TextConfig, hidden: int, blocks: int) -> _Mlp:
    fields = text.fields
    kind = text.family.mlp if text.family else "gated"
    if kind == "none":
        return _Mlp(0, 0, 2 * hidden)
    matrices = 2 if kind == "plain" else 3
    if isinstance(fields.config.get("intermediate_size"), list):
        each = fields.integers("intermediate_size") or [0]
        size = matrices * hidden * sum(each)
        return _Mlp(size, size, max(each))
    inner = fields.integer(*INTERMEDIATE) or fields.integer("decoder_ffn_dim")
    nested = fields.sub("ffn_config")
    if nested is not None:
        inner = nested.integer("ffn_hidden_size") or inner
    if inner is None:
        inner = hidden * (fields.integer("expansion_ratio") or 4)
    experts_in = nested if nested is not None else fields
    experts = experts_in.integer(*EXPERTS, minimum=0) or 0
    if experts < 2:
        size = matrices * hidden * inner
        return _Mlp(blocks * size, blocks * size, inner)
    return _experts(fields, experts_in, hidden, blocks, inner, experts, matrices)


def _experts(
    fields: Fields,
    experts_in: Fields,
    hidden: int,
    blocks: int,
    inner: int,
    experts: int,
    matrices: int,
) -> _Mlp:
    expert = matrices * hidden * (fields.integer("moe_intermediate_size") or inner)
    active = experts_in.integer(*ACTIVE) or 1
    shared = (fields.integer("n_shared_experts", minimum=0) or 0) * expert
    shared += (
        matrices
        * hidden
        * (
            fields.integer("shared_expert_intermediate_size", "shared_intermediate_size", minimum=0)
            or 0
        )
    )
    dense = _dense_blocks(fields, blocks)
    routed = blocks - dense
    wide = fields.integer("intermediate_size_mlp") or inner
    dense_size = matrices * hidden * wide
    if fields.has("intermediate_size_mlp"):
        # Llama 4: one shared expert beside the routed ones
        shared += expert
    total = dense * dense_size + routed * (experts * expert + shared + hidden * experts)
    passed = dense * dense_size + routed * (active * expert + shared + hidden * experts)
    return _Mlp(total, passed, max(inner, wide))


def _dense_blocks(fields: Fields, blocks: int) -> int:
    """Blocks whose feed-forward has no experts."""
    first = fields.integer("first_k_dense_replace", minimum=0)
    if first is not None:
        return min(first, blocks)
    listed = fields.integers("mlp_only_layers")
    if listed:
        return len(listed)
    period = fields.integer(
        "expert_layer_period", "interleave_moe_layer_step", "decoder_sparse_step"
    )
    return blocks - blocks // period if period else 0


def _encoder(fields: Fields, hidden: int) -> int:
    layers = fields.integer("encoder_layers") or 0
    inner = fields.integer("encoder_ffn_dim") or 4 * hidden
    return layers * (4 * hidden * hidden + 2 * hidden * inner)
