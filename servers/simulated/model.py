"""A serving engine as arithmetic: what a step costs, what fits, who gets in. Pure.

The cost of a step is ``base + per_running x running + per_context x context tokens +
per_prefill x prefill tokens``. Two layouts of the KV cache:

paged       blocks of ``block_size`` tokens; one of ``num_blocks`` is vLLM's null block, which
            no request gets. Blocks are taken as tokens are computed; where none is left the
            youngest running request gives up all of its own and is computed anew.
contiguous  a slot of ``max_model_len`` tokens per request, as many as the budget pays for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["paged", "contiguous"]


@dataclass(frozen=True)
class StepCost:
    """Seconds of one engine step, by what it has to do."""

    base_s: float = 0.004
    per_running_s: float = 0.0002
    per_context_s: float = 0.0
    per_prefill_s: float = 0.00001

    def seconds(self, running: int, context_tokens: int, prefill_tokens: int) -> float:
        """How long a step takes."""
        return (
            self.base_s
            + self.per_running_s * running
            + self.per_context_s * context_tokens
            + self.per_prefill_s * prefill_tokens
        )


@dataclass(frozen=True)
class EngineModel:
    """An engine and its limits."""

    layout: Layout
    cost: StepCost
    max_num_seqs: int = 256
    #: tokens that one step computes, prompts and answers together
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    #: paged
    num_blocks: int = 1024
    block_size: int = 16
    #: contiguous: the budget; both: what a token's K and V take
    kv_budget_bytes: int = 16 * 2**20
    bytes_per_token: int = 1024

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can get."""
        return self.num_blocks - 1

    @property
    def slots(self) -> int:
        """Contiguous: requests that the budget pays for."""
        return self.kv_budget_bytes // (self.max_model_len * self.bytes_per_token)

    @property
    def seats(self) -> int:
        """Requests that may run at once, memory by the block apart."""
        if self.layout == "contiguous":
            return min(self.max_num_seqs, self.slots)
        return self.max_num_seqs

    @property
    def pool_bytes(self) -> int:
        """The KV memory that the engine has."""
        if self.layout == "contiguous":
            return self.kv_budget_bytes
        return self.num_blocks * self.block_size * self.bytes_per_token

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why a request could never run; None when it can.

        The last token's K and V are never written.
        """
        if self.layout == "contiguous":
            return None if self.slots else "the KV budget holds no slot of max_model_len tokens"
        needed = self.blocks(prompt_tokens + output_tokens - 1)
        if needed <= self.usable_blocks:
            return None
        return f"the request needs {needed} blocks, the pool has {self.usable_blocks}"
