"""Multi-head latent attention: one compressed vector per token for all heads.

Source: DeepSeek-V2 (arXiv 2405.04434): the cache holds ``kv_lora_rank`` elements of the
latent and ``qk_rope_head_dim`` of the shared rotary key, and no V of its own.
"""

from __future__ import annotations

from harness.errors import ModelConfigError
from harness.kv.families.base import Family, layer_count, query_heads
from harness.kv.fields import Fields, short
from harness.kv.layers import Layer


def latent_layers(fields: Fields) -> tuple[Layer, ...]:
    """All layers latent; ``v_dim`` is 0 since V is computed from the latent."""
    rank = fields.need("the latent size", "kv_lora_rank")
    rotary = fields.need("the rotary head size", "qk_rope_head_dim", minimum=0)
    query_heads(fields)
    count = layer_count(fields)
    odd = sorted(set(fields.names("layer_types") or ()) - {"full_attention"})
    if odd:
        raise ModelConfigError(
            f"{fields.where}: layer_types has {short(odd[0])}, a cache scheme that is not known "
            "here for latent layers"
        )
    return (Layer("latent", 1, rank + rotary, 0),) * count


def expanded_elements(fields: Fields) -> int:
    """Elements per token and layer when K and V are expanded before they are cached.

    That is what transformers did before it cached the latent: heads x (qk_nope_head_dim +
    qk_rope_head_dim + v_head_dim). Raises ModelConfigError when a size is missing.
    """
    names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return query_heads(fields) * sum(
        fields.need(f"the size {name}", name, minimum=0) for name in names
    )


_DEEPSEEK = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}

FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(latent_layers, _DEEPSEEK),
    "deepseek_v3": Family(latent_layers, _DEEPSEEK),
    "glm4_moe_lite": Family(latent_layers),
    "kimi_k2": Family(latent_layers, _DEEPSEEK),
    "pangu_ultra_moe": Family(latent_layers),
}
