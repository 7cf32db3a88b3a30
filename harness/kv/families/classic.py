"""Older families with names and rules of their own: GPT-2 to ChatGLM.

Multi-query flags are the trap here: a config class may still expose as many KV heads as
query heads where the model keeps one.
"""

from __future__ import annotations

from harness.errors import ModelConfigError
from harness.kv.families.base import (
    Family,
    checked_heads,
    plain_layers,
    query_heads,
)
from harness.kv.fields import HIDDEN, KV_HEADS, Fields, short
from harness.kv.layers import Layer


def _falcon(fields: Fields) -> tuple[Layer, ...]:
    """``multi_query`` counts only without the new decoder architecture.

    Where it is not stated, a stated number of KV heads counts more than its default. As
    many as query heads is no such number: the config class writes that by itself.
    """
    stated = fields.integer(*KV_HEADS)
    kv_heads = 1 if fields.flag("multi_query", absent=True) else None
    meant = not fields.has("multi_query") and stated not in (None, query_heads(fields))
    if meant or fields.flag("new_decoder_architecture"):
        kv_heads = stated
    return plain_layers(fields, checked_heads(fields, kv_heads))


def _refined_web(fields: Fields) -> tuple[Layer, ...]:
    """Falcon's first name: a width of 8192 (40B) means the new decoder architecture."""
    if fields.integer(*HIDDEN) != 8192:
        return _falcon(fields)
    kv_heads = fields.integer(*KV_HEADS) or 1
    return plain_layers(fields, checked_heads(fields, kv_heads))


def _gpt_bigcode(fields: Fields) -> tuple[Layer, ...]:
    kv_heads = 1 if fields.flag("multi_query", absent=True) else None
    return plain_layers(fields, checked_heads(fields, kv_heads))


def _attn_config(fields: Fields) -> tuple[Layer, ...]:
    """MPT and DBRX nest the KV heads under ``attn_config``."""
    nested = fields.sub("attn_config")
    kv_heads = None
    if nested is not None:
        kv_heads = nested.integer(*KV_HEADS)
        if kv_heads is None and nested.text("attn_type") == "multiquery_attention":
            kv_heads = 1
    return plain_layers(fields, checked_heads(fields, kv_heads))


def _chatglm(fields: Fields) -> tuple[Layer, ...]:
    kv_heads = None
    if fields.flag("multi_query_attention"):
        kv_heads = fields.need("the number of KV groups", "multi_query_group_num")
    return plain_layers(fields, checked_heads(fields, kv_heads))


def _mixed_heads(fields: Fields) -> tuple[Layer, ...]:
    """OpenELM lists the heads of every layer."""
    per_layer = fields.integers("num_kv_heads")
    if per_layer is None:
        return plain_layers(fields)
    size = fields.need("the head size", "head_dim")
    if not per_layer or 0 in per_layer:
        raise ModelConfigError(
            f"{fields.where}: num_kv_heads is {short(per_layer)}; expected 1 or more in each layer"
        )
    return tuple(Layer("full", kv, size, size) for kv in per_layer)


_FALCON = {"vocab_size": 65024, "max_position_embeddings": 2048}

FAMILIES: dict[str, Family] = {
    "bloom": Family(plain_layers, {"vocab_size": 250880}, mlp="plain", tied=True, positions=2048),
    "chatglm": Family(_chatglm),
    "dbrx": Family(_attn_config),
    "falcon": Family(_falcon, _FALCON, mlp="plain", tied=True),
    "gpt2": Family(plain_layers, {"vocab_size": 50257}, mlp="plain", tied=True),
    "gpt_bigcode": Family(_gpt_bigcode, {"vocab_size": 50257}, mlp="plain", tied=True),
    "gptj": Family(plain_layers, {"vocab_size": 50400}, mlp="plain"),
    "mpt": Family(_attn_config, {"vocab_size": 50368}, mlp="plain", tied=True),
    "openelm": Family(_mixed_heads, tied=True),
    "opt": Family(plain_layers, {"vocab_size": 50272}, mlp="plain", tied=True),
    "refinedweb": Family(_refined_web, _FALCON, mlp="plain", tied=True),
    "refinedwebmodel": Family(_refined_web, _FALCON, mlp="plain", tied=True),
}
