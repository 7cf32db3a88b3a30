"""What stands below the tables of a scenario: how to read them, and what a server lacks."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.scenario_types import (
    ConversationRow,
    FragmentationRow,
    PrefixRow,
    TurnRow,
    Waterfall,
)
from harness.report.units import percent_text

#: Fewer samples with a full memory than this are no mean.
_LEAST_SAMPLES = 5
_PAPER = (
    "For comparison: Kwon et al. (PagedAttention, SOSP 2023, figure 2) report 20.4 %, 26.8 % and "
    "38.2 % for max, pow2 and exact reservation and 96.3 % for their paged cache, with other "
    "lengths, contexts and blocks of 16 tokens."
)


def fragmentation_notes(rows: Sequence[FragmentationRow]) -> list[str]:
    """How full the memory was, which order was found, what the paper found."""
    notes = []
    few = sorted({row.cell.backend for row in rows if row.saturated < _LEAST_SAMPLES})
    if few:
        notes.append(
            f"{', '.join(few)}: hardly any sample, or none, has a request waiting, so the memory "
            "was not full and the shares say little; ask for more at once (--levels) or for longer "
            "(--min-level-seconds)."
        )
    unknown = sorted({row.cell.backend for row in rows if row.policy is None})
    if unknown:
        notes.append(f"{', '.join(unknown)}: this way of reserving has no simulation.")
    elif any(row.predicted is None for row in rows):
        names = ", ".join(sorted({row.cell.backend for row in rows if row.predicted is None}))
        notes.append(
            f"{names}: no simulation, because the KV budget, the bytes per token or the longest "
            "context are not known (--model-config names the model), or a request could never run."
        )
    if any(row.share is not None for row in rows):
        notes.append(_PAPER)
    return notes


def waterfall_notes(found: Waterfall) -> list[str]:
    """What makes the steps no decomposition."""
    notes = []
    if found.budgets_differ:
        notes.append(
            "The servers do not have the same KV budget: the steps also show that difference."
        )
    if any(step.change is None for step in found.steps[1:]):
        notes.append("A step without a name: the two modes are not known, or do not differ.")
    if any(step.change is not None and "+" in step.change for step in found.steps[1:]):
        notes.append("A step of several parts is not split further.")
    return notes


def prefix_notes(rows: Sequence[PrefixRow]) -> list[str]:
    """Which server has no prefix cache, or does not say."""
    notes = []
    for name in dict.fromkeys(row.cell.backend for row in rows):
        mine = [row for row in rows if row.cell.backend == name]
        sharing = [row for row in mine if row.planned_ratio]
        if all(row.hit_ratio is None for row in mine):
            notes.append(f"{name}: states no prefix cache, so it has none or does not count it.")
        elif sharing and not any(row.hit_ratio for row in sharing):
            notes.append(
                f"{name}: found nothing of what was shared; its prefix cache is off, or the system "
                "prompt is shorter than one of its blocks."
            )
        if any(row.hit_ratio and not row.planned_ratio for row in mine):
            most = max(row.hit_ratio or 0.0 for row in mine if not row.planned_ratio)
            notes.append(
                f"{name}: {percent_text(most)} was found where nothing was shared: other clients, "
                "or an earlier run, used the server."
            )
    return notes


def conversation_notes(rows: Sequence[ConversationRow]) -> list[str]:
    """Which server has no prefix cache, or does not say."""
    notes = []
    for name in dict.fromkeys(row.cell.backend for row in rows):
        mine = [row for row in rows if row.cell.backend == name]
        if all(row.hit_ratio is None for row in mine):
            notes.append(
                f"{name}: states no prefix cache; every turn computes all that was said before."
            )
        elif not any(row.hit_ratio for row in mine):
            notes.append(f"{name}: found nothing of what had been said; its prefix cache is off.")
    if any(row.hit_ratio for row in rows):
        notes.append(
            "KV used counts the turns in progress: between turns a paged server's blocks are free "
            "to be taken, and are found again as long as nobody has taken them. It finds whole "
            "blocks only, so less than could be found."
        )
    return notes


def turn_notes(rows: Sequence[TurnRow]) -> list[str]:
    """Why what was found is not known turn by turn, where it is not."""
    silent = dict.fromkeys(row.cell.backend for row in rows if row.cached_tokens is None)
    if not silent:
        return []
    return [
        f"{', '.join(silent)}: does not state what it found of each prompt (vLLM does with "
        "--enable-prompt-tokens-details)."
    ]
