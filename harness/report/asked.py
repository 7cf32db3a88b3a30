"""What a workload asks for, in words: its lengths, and what its requests share."""

from __future__ import annotations

from harness.kv.units import counted
from harness.report.units import duration_text
from harness.workload import Conversations, LengthMix, SharedPrefix, Workload


def lengths_text(work: Workload) -> str:
    """``512 prompt + 128 output tokens``; of a matrix all lengths, of other asks what they are."""
    shapes = work.shapes or ((work.prompt_tokens, work.output_tokens),)
    prompts, outputs = (sorted(set(lengths)) for lengths in zip(*shapes, strict=True))
    prompt, output = (", ".join(map(str, lengths)) for lengths in (prompts, outputs))
    plain = f"{prompt} prompt + {output} output tokens"
    asks = work.asks
    if isinstance(asks, LengthMix):
        return f"{plain} at the median ({asks.source})"
    if isinstance(asks, SharedPrefix):
        return f"{plain}, of which {asks.prefix_tokens} are a system prompt"
    if isinstance(asks, Conversations):
        return f"{plain} in the middle of {counted(asks.turns, 'turn')}"
    return plain


def ask_lines(work: Workload) -> list[str]:
    """How requests that differ were made; empty for those of one length."""
    asks = work.asks
    if isinstance(asks, LengthMix):
        return [_mix_line(asks)]
    if isinstance(asks, SharedPrefix):
        shares = ", ".join(f"{share:g}" for share in asks.reuse)
        return [
            f"Prompts: {asks.prefix_tokens} tokens of a system prompt and "
            f"{work.prompt_tokens - asks.prefix_tokens} of the request's own. The share (reuse "
            f"{shares}) has the level's system prompt, spread evenly; the others have one that "
            "nobody else has. Every level and share has another system prompt."
        ]
    if isinstance(asks, Conversations):
        return [
            f"Conversations: {asks.system_tokens} tokens of a system prompt that all of a level "
            f"share, {counted(asks.turns, 'turn')} of {asks.user_tokens} tokens of the user and "
            f"{work.output_tokens} of the server; between an answer and the next turn the user "
            f"thinks, {duration_text(asks.think_s)} on average (exponential). The history has the "
            "server's own tokens where it states their ids, else made-up ones of the same number. "
            "Said before: what the server must have seen or generated, its last token left out."
        ]
    return []


def _mix_line(asks: LengthMix) -> str:
    where = f" (SHA-256 {asks.sha256[:12]})" if asks.sha256 else ""
    how = {
        "scale": f"all lengths x {asks.factor:.4g}",
        "clip": f"{counted(asks.shortened, 'longer request')} cut",
        "skip": f"{counted(asks.skipped, 'longer request')} left out",
    }[asks.over_length]
    return (
        f"Lengths: {counted(asks.requests, 'request')} of {asks.source}{where}, "
        f"{asks.mean_tokens:,.0f} tokens on average, prompt + answer at most "
        f"{asks.context_tokens:,} ({how}); the list begins anew with every level and is the same "
        "for every backend. The token counts elsewhere are its medians. Simulation: the requests "
        "of each level, in the order in which they were sent, admitted first come first served "
        "as the server reserves, a token each per step, from the model's config and the budget."
    )
