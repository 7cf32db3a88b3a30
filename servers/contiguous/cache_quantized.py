"""The ``quantized`` policy: every request has a quantized cache of its own, by HQQ.

A request is prefilled with full keys and values. When it joins the batch each layer of it
becomes one of transformers' ``HQQQuantizedLayer``: the prompt is quantized, once and as a
whole, and new tokens gather in a residual of full precision; every ``RESIDUAL_TOKENS``
tokens that layer quantizes all it holds anew. This is what ``generate`` with transformers'
quantized cache does for a batch of one. Because no two requests share a tensor, whoever
joins or leaves changes nothing for the others.

A forward needs plain tensors: each layer is dequantized for all rows, padded on the left
and dropped again after its attention, so one layer of full keys and values exists at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from harness.errors import ModelConfigError, OptionError
from servers.contiguous.cache import ForwardArgs, KvPart, storage_bytes
from servers.contiguous.cache_dynamic import cache_bytes, layers_of, widen
from servers.contiguous.layout import KvLayout
from servers.contiguous.padding import left_padding_mask
from servers.contiguous.prefilling import FullPrefill
from servers.contiguous.quantized_size import GROUP_SIZE, RESIDUAL_TOKENS


def quantized_layer(bits: int) -> Any:
    """An empty layer as transformers makes it; raises OptionError where it has or finds none."""
    try:
        from transformers.cache_utils import HQQQuantizedLayer

        return HQQQuantizedLayer(
            nbits=bits, q_group_size=GROUP_SIZE, residual_length=RESIDUAL_TOKENS
        )
    except ImportError as error:
        raise OptionError(
            "--cache",
            "quantized",
            "another policy here: it needs the package hqq (pip install hqq) and a transformers "
            f"with HQQQuantizedLayer ({' '.join(str(error).split())})",
        ) from error


def check_quantizable(layout: KvLayout) -> None:
    """Raises ModelConfigError for a model whose tokens do not fill whole groups."""
    for layer in layout.layers:
        for dim in (layer.key_dim, layer.value_dim):
            if layer.heads * dim % GROUP_SIZE:
                raise ModelConfigError(
                    f"--cache quantized: a token has {layer.heads} KV heads x {dim} numbers in a "
                    f"layer, which is no multiple of HQQ's group of {GROUP_SIZE}"
                )


class _Request:
    """One decoding request: its layers, and what of them is quantized."""

    def __init__(self, layers: list[Any], tokens: int) -> None:
        self.layers = layers
        self.tokens = tokens
        self.payload_bytes = self.scales_bytes = 0
        self._measure()

    def decoded(self) -> None:
        """One more token; a residual that is empty has just been quantized."""
        self.tokens += 1
        if not self.layers[0].keys.numel():
            self._measure()

    def residual_bytes(self) -> int:
        """Storages of what is not quantized."""
        return sum(storage_bytes(layer.keys, layer.values) for layer in self.layers)

    def _measure(self) -> None:
        # kept between two quantizations, since nothing of it changes: a walk over all tensors
        # at every step would show in the time per token
        payload = scales = 0
        for layer in self.layers:
            for packed, meta in (layer._quantized_keys, layer._quantized_values):
                payload += storage_bytes(packed)
                scales += storage_bytes(meta["scale"], meta["zero"])
        self.payload_bytes, self.scales_bytes = payload, scales


class _RowsLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One model layer over all rows, behind the interface that transformers' models call."""

    is_sliding = False

    def __init__(self, requests: list[_Request], index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_initialized = True
        self._requests = requests
        self._index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: requests bring their layers."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a token per row; returns all rows dequantized, padded on the left."""
        pairs = [
            request.layers[self._index].update(key_states[at : at + 1], value_states[at : at + 1])
            for at, request in enumerate(self._requests)
        ]
        width = max(keys.shape[-2] for keys, _ in pairs)
        return (
            torch.cat([widen(keys, width) for keys, _ in pairs]),
            torch.cat([widen(values, width) for _, values in pairs]),
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that ``update`` will return."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens of the longest row."""
        return max((request.tokens for request in self._requests), default=0)

    def get_max_length(self) -> int:
        """No limit."""
        return -1


class QuantizedBatchCache(FullPrefill):
    """Rows of quantized layers, and a full cache for the prefilling request (``BatchCache``)."""

    def __init__(self, layout: KvLayout, bits: int) -> None:
        # here, so that a missing package is known before any request
        quantized_layer(bits)
        self._bits = bits
        super().__init__(layout.device)
        self._requests: list[_Request] = []
        layers = [_RowsLayer(self._requests, index) for index in range(len(layout.layers))]
        self._cache = Cache(layers=list(layers))

    def join(self) -> None:
        """Quantize the prompt layer by layer; a layer's full tensors are freed with it."""
        made = []
        for full in layers_of(self._filling()):
            layer = quantized_layer(self._bits)
            layer.update(full.keys, full.values)
            full.keys = full.values = None
            made.append(layer)
        self._requests.append(_Request(made, self._prefill_length))
        self.drop_prefill()

    def decode_args(self) -> ForwardArgs:
        """All rows; a mask that hides the padding where there is any."""
        stored = [request.tokens for request in self._requests]
        positions = torch.tensor(stored, device=self._device)[:, None]
        return ForwardArgs(self._cache, positions, left_padding_mask(stored, self._device))

    def decoded(self) -> None:
        """Every row is one longer."""
        for request in self._requests:
            request.decoded()

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Drop the layers of those who leave; nothing is copied or quantized again."""
        gone = set(rows)
        order = [row for row in range(len(self._requests)) if row not in gone]
        self._requests[:] = [self._requests[row] for row in order]
        return order

    def clear(self) -> None:
        """Drop all rows."""
        self._requests.clear()

    def part_bytes(self) -> dict[KvPart, int]:
        """Storages of the quantized numbers, their scales and zeros, the residual, the prompt."""
        return {
            "payload": sum(request.payload_bytes for request in self._requests),
            "scales": sum(request.scales_bytes for request in self._requests),
            "residual": sum(request.residual_bytes() for request in self._requests),
            "full": cache_bytes(self._prefill),
        }

    def used_bytes(self) -> int:
        """All of them."""
        return sum(self.part_bytes().values())

    def tokens_held(self) -> int:
        """Tokens stored, quantized or not."""
        return sum(request.tokens for request in self._requests) + self._prefill_length

    def padding_bytes(self) -> int:
        """None: rows are padded only while a layer's attention runs."""
        return 0
