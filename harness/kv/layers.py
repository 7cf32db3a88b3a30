"""What one layer of a model keeps for a request, as the KV cache sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import OptionError

#: ``full``     K and V of every token
#: ``sliding``  K and V of the last ``window`` tokens
#: ``chunked``  K and V of the tokens of the current chunk of ``window`` tokens
#: ``latent``   one compressed vector per token for all heads (multi-head latent attention)
#: ``state``    a constant state per request (Mamba, gated linear attention, short convolution)
#: ``cross``    K and V of the encoder's ``positions``, constant per request
#: ``shared``   nothing: it reads another layer's K and V
LayerKind = Literal["full", "sliding", "chunked", "latent", "state", "cross", "shared"]


CONVOLUTION = "convolution"
RECURRENT = "recurrent"


@dataclass(frozen=True)
class StatePart:
    """One tensor of a constant state, counted in elements over all ranks.

    ``groups`` x ``group_elements`` is the share that belongs to groups of heads: ranks
    that groups cannot be split over get copies, as vLLM's Mamba-2 layers do.
    """

    name: str
    elements: int
    groups: int = 0
    group_elements: int = 0
    #: ``auto`` is the weights' dtype
    dtype: str = "auto"

    def per_rank(self, tp: int) -> int:
        """Elements on one of ``tp`` ranks; raises OptionError when they do not split."""
        groups = self.groups if self.groups % tp == 0 else tp
        total = self.elements + groups * self.group_elements
        if total % tp:
            raise OptionError("--tp", tp, f"a number that divides the {self.name} state ({total})")
        return total // tp


@dataclass(frozen=True)
class Layer:
    """What one layer keeps: ``kv_heads`` x (``k_dim`` + ``v_dim``) elements per token."""

    kind: LayerKind
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int | None = None
    positions: int | None = None
    state: tuple[StatePart, ...] = ()
    #: extra states that vLLM keeps per request while prefixes are cached, to resume from
    checkpoints: int = 0

    @property
    def grows(self) -> bool:
        """Whether the first tokens of a request add to what this layer keeps."""
        return self.kind in ("full", "sliding", "chunked", "latent")

    def with_state_dtype(self, dtype: str) -> Layer:
        """The layer with its recurrent states (not the convolution's inputs) in ``dtype``."""
        parts = tuple(
            replace(part, dtype=dtype) if part.name == RECURRENT else part for part in self.state
        )
        return replace(self, state=parts)

    def tokens_held(self, tokens: int) -> int:
        """Tokens whose K and V the layer still needs after ``tokens`` of a request."""
        if not self.grows:
            return 0
        return tokens if self.window is None else min(tokens, self.window)
