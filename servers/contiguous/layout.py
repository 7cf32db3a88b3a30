"""What one token costs in this model's KV cache, read from real tensors.

Nothing here computes from the config: one token is run through the model and the cache
that transformers made for it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from harness.errors import ModelConfigError


@dataclass(frozen=True)
class LayerShape:
    """One layer's cache: keys ``[batch, heads, tokens, key_dim]``, values with ``value_dim``."""

    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class KvLayout:
    """All layers' shapes, and where and in what type they lie."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        elements = sum(layer.heads * (layer.key_dim + layer.value_dim) for layer in self.layers)
        return elements * self.dtype.itemsize


def odd_layers(config: Any) -> list[str]:
    """Types of this architecture's cache layers that are not plain full attention.

    ``DynamicCache(config=...)`` makes each layer's cache of the type that the architecture
    asks for: sliding windows, linear attention and indexed attention show by their type.
    """
    layers = DynamicCache(config=config).layers
    return sorted({type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer})


@torch.inference_mode()
def probe_layout(model: Any, device: torch.device) -> KvLayout:
    """Run one token and measure the cache; raises ModelConfigError for a layer left empty."""
    cache = DynamicCache(config=model.config)
    ids = torch.zeros((1, 1), dtype=torch.long, device=device)
    model(input_ids=ids, past_key_values=cache, use_cache=True)
    layers: list[Any] = list(cache.layers)
    shapes = []
    for layer in layers:
        if layer.keys is None or layer.keys.shape[-2] != 1:
            raise ModelConfigError(
                f"--model: {type(model).__name__} does not store its keys and values in the "
                "cache that it is given; the contiguous caches cannot hold them"
            )
        shapes.append(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]))
    first = layers[0].keys
    return KvLayout(tuple(shapes), first.dtype, first.device)
