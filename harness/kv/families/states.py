"""Constant states of recurrent layers, by kind; shapes as the engines keep them.

Sources: Mamba (arXiv 2312.00752), Mamba-2 (arXiv 2405.21060), gated delta networks
(arXiv 2412.06464), lightning attention (arXiv 2401.04658).
"""

from __future__ import annotations

from harness.errors import ModelConfigError
from harness.kv.fields import Fields
from harness.kv.layers import CONVOLUTION, RECURRENT, Layer, StatePart


def mamba1(inner: int, state: int, kernel: int) -> Layer:
    """Mamba-1: the last ``kernel - 1`` inputs, and ``inner`` x ``state``."""
    parts = (
        StatePart(CONVOLUTION, inner * (kernel - 1)),
        StatePart(RECURRENT, inner * state),
    )
    return Layer("state", state=parts)


def mamba2(
    *, heads: int, head_dim: int, groups: int, state: int, kernel: int, dtype: str = "auto"
) -> Layer:
    """Mamba-2: the convolution covers the inner width and B and C of every group."""
    inner = heads * head_dim
    parts = (
        StatePart(CONVOLUTION, inner * (kernel - 1), groups, 2 * state * (kernel - 1)),
        StatePart(RECURRENT, heads * head_dim * state, dtype=dtype),
    )
    # vLLM 0.32 exports one more state per request from inside a prefill
    return Layer("state", state=parts, checkpoints=1)


def gated_delta(
    *, k_heads: int, v_heads: int, k_dim: int, v_dim: int, kernel: int, dtype: str = "auto"
) -> Layer:
    """Gated delta network: convolution over Q, K and V, and a matrix per value head."""
    width = 2 * k_heads * k_dim + v_heads * v_dim
    parts = (
        StatePart(CONVOLUTION, width * (kernel - 1)),
        StatePart(RECURRENT, v_heads * v_dim * k_dim, dtype=dtype),
    )
    return Layer("state", state=parts)


def short_convolution(width: int, kernel: int) -> Layer:
    """A short convolution alone (LFM2)."""
    return Layer("state", state=(StatePart(CONVOLUTION, width * (kernel - 1)),))


def lightning(heads: int, head_dim: int) -> Layer:
    """Linear attention: one matrix per head."""
    return Layer("state", state=(StatePart(RECURRENT, heads * head_dim * head_dim),))


def mamba2_from(
    fields: Fields, *, heads: tuple[str, ...], size: tuple[str, ...], hidden: int
) -> Layer:
    """Mamba-2 from the field names that most hybrids use; ``auto`` head size is derived."""
    count = fields.need("the number of Mamba heads", *heads)
    inner = fields.integer("mamba_d_ssm", "mamba_intermediate") or hidden * (
        fields.integer("mamba_expand", "expand") or 2
    )
    name_value = fields.raw(*size)
    if name_value is None or name_value[1] == "auto":
        if inner % count:
            raise ModelConfigError(
                f"{fields.where}: Mamba width {inner} is no multiple of {count} heads"
            )
        head_dim = inner // count
    else:
        head_dim = fields.need("the Mamba head size", *size)
    return mamba2(
        heads=count,
        head_dim=head_dim,
        groups=fields.integer("mamba_n_groups", "mamba_ngroups", "n_groups") or 1,
        state=fields.need("the Mamba state size", "mamba_d_state", "ssm_state_size", "state_size"),
        kernel=fields.integer("mamba_d_conv", "conv_kernel") or 4,
        dtype=fields.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype") or "auto",
    )
