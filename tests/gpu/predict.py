"""What a cell's memory must be, from the architecture alone."""

from __future__ import annotations

from servers.contiguous.quantized_size import QuantizedSize
from tests.gpu.models import ITEMSIZE, Shape

#: window of the sliding mode, tokens
WINDOW = 1024
TINY_WINDOW = 24


def used_bytes(
    shape: Shape, mode: str, prompt: int, decoded: int, batch: int, max_model_len: int, window: int
) -> int:
    """KV bytes of ``batch`` equal requests that have decoded so many tokens each.

    A token of all layers is 2 x layers x KV heads x head_dim numbers. ``dynamic`` holds
    those that are stored, ``static`` whole slots, ``sliding`` window - 1 at most.
    """
    token = shape.kv_elements * ITEMSIZE
    stored = prompt + decoded
    if mode == "off":
        return 0
    if mode.startswith("static"):
        return batch * max_model_len * token
    if mode == "sliding":
        return batch * min(stored, window - 1) * token
    if mode.startswith("quantized"):
        size = QuantizedSize(shape.kv_elements, ITEMSIZE, int(mode.removeprefix("quantized-")))
        return batch * sum(size.stored(prompt, decoded).values())
    return batch * stored * token


def least_temporary(shape: Shape, mode: str, prompt: int, batch: int) -> int:
    """What a decode step cannot do without, in bytes.

    The float32 logits that a token is chosen from; ``dynamic`` also holds the old and the new
    keys of a layer at once (torch.cat), so the new ones come on top of what stays.
    """
    logits = batch * shape.vocab * 4
    if mode != "dynamic":
        return logits
    layer_keys = batch * prompt * shape.kv_heads * shape.head_dim * ITEMSIZE
    return max(logits, layer_keys)
