"""What each cache policy beside static and dynamic is made of, and what it cannot do."""

from __future__ import annotations

from typing import Any

import torch

from harness.errors import OptionError
from servers.contiguous.admission import AdmissionPolicy
from servers.contiguous.admission_modes import OffPolicy, QuantizedPolicy, SlidingPolicy
from servers.contiguous.batch import Runner
from servers.contiguous.cache_dynamic import DynamicBatchCache
from servers.contiguous.cache_quantized import QuantizedBatchCache, check_quantizable
from servers.contiguous.cache_sliding import SlidingBatchCache
from servers.contiguous.layout import KvLayout
from servers.contiguous.quantized_size import RESIDUAL_TOKENS, QuantizedSize
from servers.contiguous.recompute import RecomputeRunner
from servers.contiguous.runner import ModelRunner
from servers.contiguous.settings import Settings


def windowed_layout(settings: Settings, layout: KvLayout) -> KvLayout:
    """The layout with --sliding-window applied; raises OptionError without any window."""
    if settings.cache != "sliding":
        return layout
    narrowed = layout.windowed(settings.sliding_window)
    if smallest_window(narrowed) is None:
        raise OptionError(
            "--sliding-window", None, "a number of tokens: the model has no window of its own"
        )
    return narrowed


def smallest_window(layout: KvLayout) -> int | None:
    """Tokens; None where every layer sees all."""
    return min((layer.window for layer in layout.layers if layer.window is not None), default=None)


def quantized_size(layout: KvLayout, bits: int) -> QuantizedSize:
    """Of one token of this model."""
    elements = sum(layer.elements_per_token for layer in layout.layers)
    return QuantizedSize(elements, layout.dtype.itemsize, bits)


def mode_policy(settings: Settings, layout: KvLayout, budget: int) -> AdmissionPolicy | None:
    """The admission policy; None for static and dynamic."""
    if settings.cache == "off":
        return OffPolicy(settings.seqs_limit)
    if settings.cache == "sliding":
        return SlidingPolicy(budget, layout.bytes_kept, settings.seqs_limit)
    if settings.quantized_bits is not None:
        size = quantized_size(layout, settings.quantized_bits)
        return QuantizedPolicy(budget, size, settings.seqs_limit)
    return None


def mode_runner(
    settings: Settings, model: Any, layout: KvLayout, device: torch.device
) -> Runner | None:
    """What runs the forwards; None for static and dynamic.

    Raises OptionError or ModelConfigError for what model or packages cannot do.
    """
    if settings.cache == "off":
        return RecomputeRunner(model, device)
    if settings.cache == "sliding":
        return ModelRunner(model, _sliding(layout), device)
    if settings.quantized_bits is not None:
        check_quantizable(layout)
        return ModelRunner(model, QuantizedBatchCache(layout, settings.quantized_bits), device)
    return None


def check_runner(
    settings: Settings, model: Any, layout: KvLayout, device: torch.device
) -> Runner | None:
    """What the self-check runs in these modes; None for static and dynamic.

    A quantized cache hands its rows to the model as a dynamic one does, but rounded, so the
    model is checked in a dynamic one.
    """
    if settings.cache == "quantized":
        return ModelRunner(model, DynamicBatchCache(layout), device)
    return mode_runner(settings, model, layout, device)


def mode_facts(settings: Settings, layout: KvLayout) -> dict[str, object]:
    """What /version says about the mode; None where it has no such thing."""
    quantized = settings.quantized_bits
    return {
        "cache": settings.cache,
        "kv_bits": quantized,
        "kv_residual_tokens": None if quantized is None else RESIDUAL_TOKENS - 1,
        "sliding_window": smallest_window(layout) if settings.cache == "sliding" else None,
        "compile": settings.compile if settings.cache == "static" else None,
        "changes_answers": _changes(settings),
    }


def _changes(settings: Settings) -> str | None:
    """Why answers differ from the model's own; None where they do not."""
    if settings.sliding_window is not None:
        return f"every layer sees the last {settings.sliding_window} tokens only"
    if settings.quantized_bits is not None:
        return f"keys and values are rounded to {settings.quantized_bits} bits"
    return None


def _sliding(layout: KvLayout) -> SlidingBatchCache:
    own = any(layer.kind == "sliding_attention" for layer in layout.layers)
    return SlidingBatchCache(layout, own_masks=own)
