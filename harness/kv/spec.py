"""From a model's config (raw JSON) to ``ModelSpec``: what each layer keeps per token.

The config is read as it stands: transformers' own classes fill in and alias fields in
ways that are right for building a model and wrong for sizing its cache (a multi-query
Falcon shows 71 KV heads there).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.errors import ModelConfigError, printable, shortened
from harness.kv.families import FAMILIES
from harness.kv.families.base import Family, plain_layers
from harness.kv.families.latent import latent_layers
from harness.kv.fields import HEADS, HIDDEN, LAYERS, POSITIONS, Fields, short
from harness.kv.layers import RECURRENT, Layer

Status = Literal["known", "assumed"]

#: where multimodal configs keep the language model, best first
NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "language_model")
#: model types that keep no KV cache at all
ENCODERS = frozenset(
    {"albert", "bert", "camembert", "clip", "deberta", "deberta-v2", "distilbert", "electra"}
    | {"modernbert", "mpnet", "nomic_bert", "roberta", "siglip", "vit", "xlm-roberta"}
)
#: parts of field names by which an unknown architecture shows a cache scheme of its own
SIGNS = re.compile(
    "mamba|ssm_|state_size|rwkv|linear_attn|linear_num|lightning|index_topk|compress_ratio"
    "|hybrid|attn_type_list|conv_kernel|kv_shared|cross_attention|block_configs|attn_layer"
    "|global_head|global_key|use_cla|lru_width|block_types|dense_attention_every"
    "|attention_window|linear_key|linear_value|attention_other_setting"
)
#: RoPE scalings that leave the stated length alone: it is scaled already
SCALED_ALREADY = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
    | {"telechat3-yarn"}
)
#: old and new names of one scaling, which may stand side by side
RENAMED = frozenset({("su", "longrope"), ("mrope", "default")})
#: no model nests its language model deeper
MOST_NESTED = 4
#: no RoPE scaling is near this
MOST_FACTOR = 1_000_000


@dataclass(frozen=True)
class ModelSpec:
    """A model as its KV cache sees it."""

    architecture: str
    model_type: str
    #: ``assumed``: the architecture is not known here, its fields look plain
    status: Status
    #: query heads of the decoder: tensor parallelism splits these
    heads: int
    #: one entry per cache: a decoder layer with self and cross attention has two
    layers: tuple[Layer, ...]
    #: the weights' dtype as the config states it
    dtype: str | None
    #: the longest context that the config allows
    max_positions: int | None
    #: facts that the family's defaults supplied and other things a reader should know
    notes: tuple[str, ...] = ()

    @property
    def has_recurrent_states(self) -> bool:
        """Whether a dtype of recurrent states, apart from the weights', means anything."""
        return any(part.name == RECURRENT for layer in self.layers for part in layer.state)

    @property
    def growing(self) -> tuple[Layer, ...]:
        """Layers whose first tokens add to the cache."""
        return tuple(layer for layer in self.layers if layer.grows)


@dataclass(frozen=True)
class TextConfig:
    """The language model's part of a config, with its family."""

    fields: Fields
    model_type: str
    family: Family | None


def text_config(config: Mapping[str, object]) -> TextConfig:
    """Find the language model in a config; raises ModelConfigError when there is none."""
    where, found = _descend("config", config)
    top_type = Fields(config).text("model_type") or ""
    model_type = Fields(found).text("model_type") or top_type
    for name in (model_type, f"{model_type}_text"):
        if name.lower() in FAMILIES:
            model_type = name
            break
    family = FAMILIES.get(model_type.lower())
    fields = Fields(found, where, family.defaults if family else None)
    if not fields.has(*LAYERS, *HIDDEN, *HEADS, "decoder_layers") and found is config:
        raise ModelConfigError(
            f"{where}: this is no model config: neither its number of layers nor its hidden "
            f"size is set ({LAYERS[0]}, {HIDDEN[0]}, or another name for them)"
        )
    return TextConfig(fields, model_type, family)


def _descend(
    where: str, config: Mapping[str, object], depth: int = 0
) -> tuple[str, Mapping[str, object]]:
    """The innermost nested language model; the top level when it is complete by itself."""
    if depth > MOST_NESTED:
        raise ModelConfigError(f"config: its language model is nested more than {depth - 1} deep")
    for name in NESTED:
        inner = config.get(name)
        if not isinstance(inner, Mapping):
            continue
        if Fields(config).has(*LAYERS) and not Fields(inner).has(*LAYERS):
            continue
        return _descend(f"{where}.{name}", inner, depth + 1)
    return where, config


def read_spec(config: Mapping[str, object]) -> ModelSpec:
    """The spec of a parsed ``config.json``; raises ModelConfigError with what is wrong."""
    text = text_config(config)
    fields = text.fields
    if text.model_type in ENCODERS:
        raise ModelConfigError(f"config: {text.model_type} is an encoder and keeps no KV cache")
    layers = text.family.layers(fields) if text.family else _assumed_layers(text)
    if not layers:
        raise ModelConfigError(f"{fields.where}: no layer keeps anything")
    notes = [f"not in the config, taken from the family: {note}" for note in fields.used_defaults]
    notes += fields.notes
    dtype = _dtype(config, fields, notes)
    if text.family is None:
        notes.insert(
            0,
            f"architecture {short(text.model_type or 'without a name')} is not known here: "
            "its plain fields are computed as they stand",
        )
        notes += _ignored_window(fields, layers)
    return ModelSpec(
        architecture=_architecture(config, text.model_type),
        model_type=text.model_type,
        status="known" if text.family else "assumed",
        heads=_heads(fields),
        layers=layers,
        dtype=dtype,
        max_positions=max_positions(text),
        notes=tuple(notes),
    )


def _dtype(config: Mapping[str, object], fields: Fields, notes: list[str]) -> str | None:
    """The weights' dtype: ``dtype`` before its old name, the whole model's before the part's.

    As transformers 5.19 and vLLM 0.32 read it (``PreTrainedConfig.__post_init__``,
    ``get_torch_dtype``); what is passed over and differs becomes a note.
    """
    places = [Fields(config)] if fields.config is config else [Fields(config), fields]
    found: list[tuple[str, str]] = []
    for place in places:
        for name in ("dtype", "torch_dtype"):
            value = place.text(name)
            if value is not None:
                found.append((f"{place.where}.{name}", value.removeprefix("torch.")))
    if not found:
        return None
    (chosen, dtype), *others = found
    differ = [f"{name} {short(value)}" for name, value in others if value != dtype]
    if differ:
        notes.append(
            f"the config contradicts itself: {chosen} {short(dtype)} counts, as transformers and "
            f"vLLM read it, and not {', '.join(differ)}; --dtype decides"
        )
    return dtype


def _heads(fields: Fields) -> int:
    names = ("decoder_attention_heads",) if fields.has("decoder_attention_heads") else HEADS
    # a pure state model has no attention heads to split
    return fields.integer(*names) or 1


def _assumed_layers(text: TextConfig) -> tuple[Layer, ...]:
    """Layers of an unknown architecture, or a refusal that names what is strange."""
    fields = text.fields
    name = shortened(printable(text.model_type), 40) or "(no model_type)"
    if fields.flag("is_encoder_decoder"):
        raise ModelConfigError(
            f"{fields.where}: {name} is an encoder-decoder whose decoder is not known here"
        )
    signs = sorted(
        key
        for key, value in fields.config.items()
        if value not in (None, False, 0, []) and SIGNS.search(key)
    )
    if fields.config.get("multi_query") is True and not fields.has("num_key_value_heads"):
        signs.append("multi_query")
    if signs:
        shown = ", ".join(shortened(printable(sign), 40) for sign in signs[:4])
        raise ModelConfigError(
            f"{fields.where}: {name} is not known and shows a cache scheme of its own "
            f"({shown}); refusing to guess"
        )
    if fields.has("kv_lora_rank"):
        return latent_layers(fields)
    return plain_layers(fields)


def _ignored_window(fields: Fields, layers: tuple[Layer, ...]) -> list[str]:
    """An unknown architecture's window that nothing assigns to layers: an upper bound stands."""
    window = fields.config.get("sliding_window")
    if not window or not fields.flag("use_sliding_window", absent=True):
        return []
    if any(layer.window for layer in layers):
        return []
    return [f"sliding_window {window} is not applied: all layers count as full, an upper bound"]


def max_positions(text: TextConfig) -> int | None:
    """The longest context, as vLLM derives it: the smallest stated length, scaled by RoPE.

    None when the config states no length.
    """
    fields = text.fields
    names = ("model_max_length",) if fields.has("model_max_length") else POSITIONS
    found = [
        length for name in names if (length := fields.integer(name)) is not None and length < 10**9
    ]
    factor, long_rope = _rope_scaling(fields)
    longest = min(found) if found else text.family.positions if text.family else None
    if long_rope:
        return fields.integer("original_max_position_embeddings") or longest
    if longest is None or "gemma3" in text.model_type.lower():
        # Gemma 3 states its length with the scaling in it
        return longest
    return int(longest * factor)


def _rope_scaling(fields: Fields) -> tuple[float, bool]:
    """The factor on the stated length, and whether the scaling is LongRoPE.

    ``rope_parameters`` is the newer name of ``rope_scaling``, and may hold one object per
    layer type; the last factor counts.
    """
    name = "rope_scaling" if fields.config.get("rope_scaling") else "rope_parameters"
    scaling = fields.sub(name)
    if scaling is None:
        return 1.0, False
    parts = [scaling]
    if all(value is None or isinstance(value, Mapping) for value in scaling.config.values()):
        parts = [part for key in scaling.config if (part := scaling.sub(key)) is not None]
    factor, long_rope = 1.0, False
    for part in parts:
        kind, legacy = part.text("rope_type", "type") or "default", part.text("type")
        if legacy not in (None, kind) and (legacy, kind) not in RENAMED:
            raise ModelConfigError(
                f"{part.where}: fields contradict each other: rope_type is {kind} "
                f"but type is {legacy}"
            )
        long_rope = long_rope or kind in ("longrope", "su")
        stated = _factor(part)
        if kind not in SCALED_ALREADY and "factor" in part.config:
            factor = stated
    return factor, long_rope


def _factor(part: Fields) -> float:
    value = part.config.get("factor")
    if value is None:
        return 1.0
    number = value if isinstance(value, (int, float)) and value is not True else 0
    # false for NaN and infinity as well
    if 0 < number <= MOST_FACTOR:
        return float(number)
    raise ModelConfigError(
        f"{part.where}: factor is {short(value)}; "
        f"expected a number above 0 and at most {MOST_FACTOR:,}"
    )


def _architecture(config: Mapping[str, object], model_type: str) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    return model_type or "unknown"
