"""How many bytes a quantized request takes. Pure arithmetic, no torch.

transformers' ``HQQQuantizedLayer`` packs 4 or 8 bits per number, and keeps a scale and a
zero per group of 64 numbers in the cache's own type. Of n prompt tokens and k decoded ones,
n + 128 x floor(k / 128) are quantized and k mod 128 are in the residual, at full precision.
"""

from __future__ import annotations

from dataclasses import dataclass

#: numbers that share a scale and a zero, and tokens at which the residual is quantized:
#: transformers' own defaults
GROUP_SIZE = 64
RESIDUAL_TOKENS = 128


@dataclass(frozen=True)
class QuantizedSize:
    """Of one model's token: its numbers over all layers (K and V), and bytes of a full one."""

    elements: int
    full_itemsize: int
    bits: int

    @property
    def full_bytes(self) -> int:
        """A token at full precision."""
        return self.elements * self.full_itemsize

    @property
    def payload_bytes(self) -> int:
        """A quantized token's packed numbers."""
        return self.elements * self.bits // 8

    @property
    def scales_bytes(self) -> int:
        """A quantized token's share of scales and zeros."""
        return 2 * self.elements // GROUP_SIZE * self.full_itemsize

    @property
    def quantized_bytes(self) -> int:
        """A quantized token, all in all."""
        return self.payload_bytes + self.scales_bytes

    def stored(self, prompt_tokens: int, decoded_tokens: int) -> dict[str, int]:
        """Bytes by part of a request in the batch that has stored so many tokens."""
        residual = decoded_tokens % RESIDUAL_TOKENS
        quantized = prompt_tokens + decoded_tokens - residual
        return {
            "payload": quantized * self.payload_bytes,
            "scales": quantized * self.scales_bytes,
            "residual": residual * self.full_bytes,
        }

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a request comes to hold in the batch.

        All its tokens quantized, and as many of the answer's as a residual can have at full
        precision instead. The last token of an answer is never stored; it is counted here.
        """
        residual = min(output_tokens, RESIDUAL_TOKENS - 1)
        tokens = prompt_tokens + output_tokens
        return (tokens - residual) * self.quantized_bytes + residual * self.full_bytes
