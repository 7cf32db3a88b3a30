"""What one token costs in this model's KV cache, read from real tensors.

Nothing here computes from the config: one token is run through the model and the cache
that transformers made for it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from harness.errors import ModelConfigError

LayerKind = Literal["full_attention", "sliding_attention"]


@dataclass(frozen=True)
class LayerShape:
    """One layer's cache: keys ``[batch, heads, tokens, key_dim]``, values with ``value_dim``."""

    heads: int
    key_dim: int
    value_dim: int
    #: tokens that a query sees, itself included; None: all
    window: int | None = None
    #: the name that the model's config and its masks go by
    kind: LayerKind = "full_attention"

    @property
    def elements_per_token(self) -> int:
        """Numbers that one token's key and value have."""
        return self.heads * (self.key_dim + self.value_dim)

    def kept(self, tokens: int) -> int:
        """Of ``tokens`` tokens, those that stay stored: the next query sees one less of them."""
        return tokens if self.window is None else min(tokens, self.window - 1)


@dataclass(frozen=True)
class KvLayout:
    """All layers' shapes, and where and in what type they lie."""

    layers: tuple[LayerShape, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        return sum(layer.elements_per_token for layer in self.layers) * self.dtype.itemsize

    def bytes_kept(self, tokens: int) -> int:
        """Keys and values of a text of ``tokens`` tokens, without what a window dropped."""
        elements = sum(layer.elements_per_token * layer.kept(tokens) for layer in self.layers)
        return elements * self.dtype.itemsize

    def windowed(self, window: int | None) -> KvLayout:
        """No layer sees more than ``window`` tokens; None leaves all as they are."""
        if window is None:
            return self
        narrowed = [
            replace(layer, window=min(window, layer.window or window)) for layer in self.layers
        ]
        return replace(self, layers=tuple(narrowed))


def odd_layers(config: Any, *, windows: bool = False) -> list[str]:
    """Types of this architecture's cache layers that are not plain full attention.

    ``DynamicCache(config=...)`` makes each layer's cache of the type that the architecture
    asks for: sliding windows, linear attention and indexed attention show by their type.
    With ``windows`` a sliding one is not odd; attention in chunks, which has the same cache
    but another mask, still is.
    """
    plain = {DynamicLayer, DynamicSlidingWindowLayer} if windows else {DynamicLayer}
    layers = DynamicCache(config=config).layers
    odd = {type(layer).__name__ for layer in layers if type(layer) not in plain}
    named = getattr(config.get_text_config(decoder=True), "layer_types", None) or ()
    return sorted(odd or (set(named) - set(get_args(LayerKind))))


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
        heads, key_dim = layer.keys.shape[1], layer.keys.shape[3]
        window = getattr(layer, "sliding_window", None)
        kind: LayerKind = "full_attention" if window is None else "sliding_attention"
        shapes.append(LayerShape(heads, key_dim, layer.values.shape[3], window, kind))
    first = layers[0].keys
    return KvLayout(tuple(shapes), first.dtype, first.device)
