"""The figures that only some scenarios have: frozen, in seconds and bytes, None where absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.analysis.percentiles import Distribution
from harness.kv.occupancy import Occupancy, Policy
from harness.records import CellKey

#: Who counted the tokens that a server held.
HeldSource = Literal["server", "client"]


@dataclass(frozen=True)
class FragmentationRow:
    """How a backend's reserved KV memory was used at one level of a mix of lengths.

    Means are over the samples in which requests waited, so that the memory was full; with
    none they are over the whole window, and ``saturated`` is 0.
    """

    cell: CellKey
    #: how the server reserves; None where its mode is not known
    policy: Policy | None
    samples: int
    saturated: int
    budget_bytes: float | None
    reserved_bytes: float | None
    tokens_held: float | None
    held_source: HeldSource | None
    #: of the server's storage, as the server states it
    bytes_per_token: float | None
    #: requests running
    held: float | None
    output_tokens_per_s: float | None
    #: of a simulation with the same requests and budget
    predicted: Occupancy | None
    #: the simulation's requests over the measured mean gap between tokens
    predicted_output_tokens_per_s: float | None

    @property
    def share(self) -> float | None:
        """Share of the reserved bytes that held tokens."""
        return self._share_of(self.reserved_bytes)

    @property
    def budget_share(self) -> float | None:
        """Share of all KV memory that held tokens."""
        return self._share_of(self.budget_bytes)

    def _share_of(self, whole: float | None) -> float | None:
        if not whole or self.tokens_held is None or self.bytes_per_token is None:
            return None
        return self.tokens_held * self.bytes_per_token / whole


@dataclass(frozen=True)
class WaterfallStep:
    """One server of a decomposition, and what it has over the one before."""

    backend: str
    mode: str
    #: ``batching``, ``reservation``, ``layout``, several joined by `` + ``; None for the first
    change: str | None
    row: FragmentationRow

    @property
    def held(self) -> float | None:
        """Requests held."""
        return self.row.held

    @property
    def output_tokens_per_s(self) -> float | None:
        """Throughput."""
        return self.row.output_tokens_per_s


@dataclass(frozen=True)
class Waterfall:
    """From the first server to the last, at one level."""

    level: float
    repeat: int
    steps: tuple[WaterfallStep, ...]
    #: the servers do not have one KV budget, so the steps are no decomposition
    budgets_differ: bool


@dataclass(frozen=True)
class PrefixRow:
    """What sharing a system prompt did at one level."""

    cell: CellKey
    #: counted requests that succeeded, and those of them that were to share
    n: int
    n_shared: int
    #: share of their prompt tokens that others' prompts had, too, by the client's plan
    planned_ratio: float | None
    #: share of the prompt tokens looked up that the server found; None: it states none
    hit_ratio: float | None
    ttft_shared_s: Distribution
    ttft_own_s: Distribution
    ttft_s: Distribution
    used_bytes: float | None
    #: requests running
    held: float | None

    @property
    def used_bytes_each(self) -> float | None:
        """KV bytes per running request."""
        return self.used_bytes / self.held if self.used_bytes is not None and self.held else None


@dataclass(frozen=True)
class TurnRow:
    """One turn of the conversations of a level."""

    cell: CellKey
    turn: int
    n: int
    prompt_tokens: float | None
    #: of the prompt, what had been said before
    known_tokens: float | None
    #: of the prompt, what the server says that it found; None: it does not say
    cached_tokens: float | None
    ttft_s: Distribution


@dataclass(frozen=True)
class ConversationRow:
    """The conversations of one level."""

    cell: CellKey
    conversations: int
    requests: int
    planned_ratio: float | None
    hit_ratio: float | None
    used_bytes: float | None
    used_bytes_max: float | None
    #: mean tokens of the conversations that were between two turns: what a server would
    #: have to keep to find all of it again
    between_tokens: float | None
    #: of the server's pool, as the server states it
    bytes_per_token: float | None

    @property
    def kept_share(self) -> float | None:
        """Share of what had been said that was found again; above 1 never, by rounding."""
        if self.hit_ratio is None or not self.planned_ratio:
            return None
        return min(1.0, self.hit_ratio / self.planned_ratio)

    @property
    def between_bytes(self) -> float | None:
        """Bytes of ``between_tokens``."""
        if self.between_tokens is None or self.bytes_per_token is None:
            return None
        return self.between_tokens * self.bytes_per_token


@dataclass(frozen=True)
class ScenarioFigures:
    """All of it; a run has the rows of its own scenario only."""

    fragmentation: tuple[FragmentationRow, ...] = ()
    waterfalls: tuple[Waterfall, ...] = ()
    prefixes: tuple[PrefixRow, ...] = ()
    turns: tuple[TurnRow, ...] = ()
    conversations: tuple[ConversationRow, ...] = ()
