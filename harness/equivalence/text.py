"""A comparison as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.equivalence.compare import Comparison, Divergence, PromptResult
from harness.equivalence.session import Result
from harness.errors import printable
from harness.manifest import BackendInfo

#: of divergences, worst first
MOST_SHOWN = 8
_HEADS = (
    *("prompt\ntokens", "prompts", "same", "up to\na tie", "different"),
    *("agreed\nmean", "agreed\nleast", "logprob error\nmean", "logprob error\nmax"),
)
#: cache modes that change what the model computes
_CHANGING = ("quantized", "sliding")


def to_json(result: Result) -> dict[str, Any]:
    """Everything, with stable names."""
    return {
        "agrees": result.agrees,
        "backends": [
            {name: getattr(info, name) for name in ("name", "kind", "mode", "model", "dtype")}
            for info in result.backends
        ],
        "comparisons": [
            {
                "reference": one.reference,
                "other": one.other,
                "tie_gap": one.tie_gap,
                "agrees": one.agrees,
                "agreed_share": one.agreed_share,
                "same": one.count("same"),
                "tie": one.count("tie"),
                "different": one.count("different"),
                "prompts": [asdict(item) for item in one.results],
            }
            for one in result.comparisons
        ],
    }


def print_result(result: Result, console: Console) -> None:
    """A table per pair, the first differences, and a verdict."""
    infos = {info.name: info for info in result.backends}
    for one in result.comparisons:
        console.print()
        console.print(Text(f"{_named(infos[one.reference])} and {_named(infos[one.other])}",
                           style="bold"))  # fmt: skip
        console.print(_table(one))
        for line in difference_lines(one):
            console.print(Text(line))
        console.print(Text(verdict_line(one), style="" if one.agrees else "bold red"))
        for line in cost_lines(one, [infos[one.reference], infos[one.other]]):
            console.print(Text(line))


def _named(info: BackendInfo) -> str:
    return f"{printable(info.name)} ({printable(info.mode)}, {info.dtype or 'dtype not stated'})"


def _table(one: Comparison) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for head in _HEADS:
        table.add_column(Text(head), justify="right")
    for length in dict.fromkeys(item.prompt_tokens for item in one.results):
        rows = [item for item in one.results if item.prompt_tokens == length]
        table.add_row(*_cells(length, rows))
    return table


def _cells(length: int, rows: Sequence[PromptResult]) -> list[str]:
    verdicts = [sum(r.verdict == v for r in rows) for v in ("same", "tie", "different")]
    means = [r.mean_logprob_error for r in rows if r.mean_logprob_error is not None]
    largest = [r.max_logprob_error for r in rows if r.max_logprob_error is not None]
    return [
        f"{length:,}",
        f"{len(rows):,}",
        *(f"{count:,}" for count in verdicts),
        f"{sum(r.agreed / r.length for r in rows) / len(rows) * 100:.1f} %",
        f"{min(r.agreed for r in rows)} of {max(r.length for r in rows)}",
        f"{sum(means) / len(means):.2g}" if means else "-",
        f"{max(largest):.2g}" if largest else "-",
    ]


def difference_lines(one: Comparison) -> list[str]:
    """The first differences beyond ties, earliest first; then those at ties."""
    found = [item for item in one.results if item.divergence is not None]
    found.sort(key=lambda item: (item.verdict != "different", item.agreed))
    lines = [_difference(item, item.divergence, one) for item in found[:MOST_SHOWN]
             if item.divergence is not None]  # fmt: skip
    if len(found) > MOST_SHOWN:
        lines.append(f"  and {len(found) - MOST_SHOWN} more (--json has all)")
    return lines


def _difference(item: PromptResult, at: Divergence, one: Comparison) -> str:
    sides = [
        f"{printable(name)} took {token} (logprob {own:.3f}, the other's "
        f"{'not among its likeliest' if other is None else f'{other:.3f}'}, "
        f"gap {'-' if gap is None else f'{gap:.3g}'})"
        for name, token, own, other, gap in zip(
            (one.reference, one.other), at.tokens, at.own, at.others, at.gaps, strict=True
        )
    ]
    kind = "a tie" if item.verdict == "tie" else "different"
    return (
        f"  prompt {item.number} ({item.prompt_tokens} tokens), token {at.step + 1}: {kind}: "
        + ("; ".join(sides))
    )


def verdict_line(one: Comparison) -> str:
    """Whether they agree, over how many prompts, and what counts as a tie."""
    total = len(one.results)
    word = "agree" if one.agrees else "disagree"
    return (
        f"{printable(one.reference)} and {printable(one.other)} {word}: of {total} prompts "
        f"{one.count('same')} token by token, {one.count('tie')} up to a tie (two logits closer "
        f"than {one.tie_gap:g} in one, than {2 * one.tie_gap:g} in the other), "
        f"{one.count('different')} different beyond ties"
    )


def cost_lines(one: Comparison, infos: Sequence[BackendInfo]) -> list[str]:
    """What a cache mode that changes answers costs in quality, by these prompts."""
    lines = []
    for info in infos:
        if info.kind == "contiguous" and info.mode.startswith(_CHANGING):
            errors = [r.mean_logprob_error for r in one.results if r.mean_logprob_error is not None]
            error = f"{sum(errors) / len(errors):.3g}" if errors else "-"
            lines.append(
                f"{printable(info.name)} is {printable(info.mode)}, which changes answers: its "
                f"cost here is that {one.agreed_share * 100:.1f} % of an answer stays the same, "
                f"with log-probabilities off by {error} on average"
            )
    return lines
