"""Floating-point work of a prefill: what grows with the length, and what with its square.

Matrices: 2 FLOPs per weight and token (one multiply, one add), the output projection for
the last token only. Attention: every query meets all keys up to its own position (or its
window), 2 FLOPs per element for the scores and 2 for the weighted sum of V.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.kv.layers import Layer


@dataclass(frozen=True)
class PrefillFlops:
    """FLOPs of one prompt."""

    tokens: int
    matrices: int
    attention: int

    @property
    def total(self) -> int:
        """All FLOPs."""
        return self.matrices + self.attention


def prefill_flops(
    tokens: int,
    *,
    layers: tuple[Layer, ...],
    heads: int,
    latent_elements: int | None,
    active_parameters: int,
    output_parameters: int,
) -> PrefillFlops:
    """FLOPs of a prompt of ``tokens`` tokens.

    ``active_parameters`` are those that every token passes (without embedding and output
    projection); ``latent_elements`` is heads x (query-key size + V size) of a latent
    layer, whose cached vector is narrower than what attention computes with.
    """
    attention = 0
    for layer in layers:
        if not layer.grows:
            continue
        width = heads * (layer.k_dim + layer.v_dim)
        if layer.kind == "latent":
            width = latent_elements or width
        attention += 2 * width * attended_pairs(tokens, layer.window)
    matrices = 2 * active_parameters * tokens + 2 * output_parameters
    return PrefillFlops(tokens, matrices, attention)


def attended_pairs(tokens: int, window: int | None) -> int:
    """Query-key pairs of a causal prefill: 1 + 2 + ... + tokens, capped at the window."""
    if window is None or tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window
