"""Why a measured knee and its prediction differ, in words with the numbers of the run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.forecast_types import Forecast
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import Knee
from harness.kv.capacity import ceil_div
from harness.kv.forecast import LengthCounts
from harness.kv.modes import read_mode
from harness.kv.reserve import reserved_tokens
from harness.kv.units import counted
from harness.manifest import BackendInfo

#: prefix-cache hits below this share change no figure
_FEW_HITS = 0.01


def difference_lines(
    info: BackendInfo,
    lengths: LengthCounts,
    found: Forecast,
    knee: Knee,
    cells: Sequence[CellFigures],
) -> tuple[str, ...]:
    """The sum of it first, then what it consists of; empty without a measured knee."""
    held = _sum(found, knee)
    if held is None:
        return ()
    first, differs = held
    lines = [first]
    if differs:
        lines += _seen(knee, cells)
        lines += _other(found, knee)
    lines += _layout(info, lengths)
    if found.worst.requests != found.steady.requests:
        lines.append(
            f"steps: all at full length at once {found.worst.requests:,} fit, out of step "
            f"{found.steady.requests:,}"
        )
    if differs:
        lines += _sharing(cells, knee)
    if differs and info.kind == "vllm" and knee.first_bad is not None:
        lines.append(
            "watermark: vLLM keeps no blocks free for it by default; a --watermark is not on record"
        )
    return tuple(lines)


def _sum(found: Forecast, knee: Knee) -> tuple[str, bool] | None:
    """What was measured beside what was predicted, and whether they differ."""
    predicted, good, bad = found.fitting.requests, knee.last_good, knee.first_bad
    if knee.status == "no_verdict":
        return None
    if bad is not None and predicted >= bad:
        below = f"below {bad:g}" if good is None else f"{good:g} to {bad:g}"
        fewer = predicted - bad + 1
        return f"measured {below}, predicted {predicted:,}: at least {fewer:g} fewer", True
    if good is not None and predicted < good:
        more = good - predicted
        return f"measured {good:g}, predicted {predicted:,}: {more:g} more", True
    if bad is None:
        return f"{good:g} held, predicted {predicted:,}: no level beyond it was tried", False
    low = "0" if good is None else f"{good:g}"
    return f"predicted {predicted:,} lies in the measured bracket, {low} to {bad:g}", False


def _seen(knee: Knee, cells: Sequence[CellFigures]) -> list[str]:
    """What the first bad level shows of it."""
    level = knee.first_bad if knee.first_bad is not None else knee.last_good
    lines: list[str] = []
    for cell in cells:
        memory = cell.memory
        if cell.cell.level != level or memory is None or cell.unjudged is not None:
            continue
        if memory.running is not None:
            lines.append(f"at {level:g} at most {memory.running.maximum:,.0f} ran at once")
        if memory.usage_ratio is not None:
            lines.append(
                f"at {level:g} at most {memory.usage_ratio.maximum * 100:.1f} % of the usable "
                "blocks held tokens"
            )
        if memory.preemptions:
            lines.append(f"at {level:g} {counted(round(memory.preemptions), 'preemption')}")
        break
    if knee.cause not in (None, "kv_memory"):
        lines.append(f"the knee's cause is {knee.cause}, which no KV arithmetic predicts")
    return lines


def _other(found: Forecast, knee: Knee) -> list[str]:
    """Whether the prediction that was not held against it would have been right."""
    other = found.steady if found.fits == "worst" else found.worst
    name = "steady state" if found.fits == "worst" else "worst case"
    low = knee.last_good or 0.0
    if knee.first_bad is None or not low <= other.requests < knee.first_bad:
        return []
    return [f"the {name}, {other.requests:,}, lies in the bracket"]


def _layout(info: BackendInfo, lengths: LengthCounts) -> list[str]:
    """What the layout costs a request at full length, by its numbers."""
    tokens = _mean_tokens(lengths)
    if info.kind == "vllm":
        return _blocks(info, tokens)
    mode = read_mode(info.mode)
    if mode is None or mode.cache != "static" or info.max_model_len is None:
        return []
    region = reserved_tokens(mode.reserve, tokens, info.max_model_len)
    unused = region - tokens
    if not unused:
        return []
    return [
        f"reservation: a request of {tokens:,} tokens is given {region:,}, {unused:,} of them "
        f"({unused / region:.0%}) for nothing"
    ]


def _blocks(info: BackendInfo, tokens: int) -> list[str]:
    if info.num_blocks is None or info.block_size is None:
        return []
    size, usable = info.block_size, max(0, info.num_blocks - 1)
    each = max(1, ceil_div(tokens, size))
    unused = each * size - tokens
    lines = [
        f"block rounding: {tokens:,} tokens take {each:,} x {size} = {each * size:,} places, "
        f"{unused:,} of them unused",
        f"null block: 1 of {info.num_blocks:,}; {usable:,} are left, {info.num_blocks // each:,} "
        f"requests would fit with it, {usable // each:,} without",
    ]
    stored = max(1, ceil_div(tokens - 1, size))
    if stored < each:
        lines.append(
            f"last token: it is never stored, so {tokens - 1:,} tokens take {stored:,} blocks and "
            f"{usable // stored:,} requests fit"
        )
    return lines


def _mean_tokens(lengths: LengthCounts) -> int:
    """Prompt and output of the mean request, rounded up."""
    n = sum(lengths.values())
    return ceil_div(sum(sum(pair) * times for pair, times in lengths.items()), n)


def _sharing(cells: Sequence[CellFigures], knee: Knee) -> list[str]:
    level = knee.last_good if knee.last_good is not None else knee.first_bad
    for cell in cells:
        ratio = cell.memory.prefix_hit_ratio if cell.memory is not None else None
        if cell.cell.level == level and ratio is not None and ratio >= _FEW_HITS:
            return [
                f"prefix sharing: {ratio * 100:.1f} % of the prompt tokens came out of the prefix "
                "cache, and shared blocks count once"
            ]
    return []
