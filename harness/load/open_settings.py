"""The options of open loops, validated: rates, ramps, traces. Reads the trace file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import cast

from harness.errors import OptionError, UsageError
from harness.load.numbers import MAX_SECONDS, MAX_TOKENS, decimal, seconds, whole
from harness.load.open_options import DEFAULT_RATES, OVER_LENGTH, RAMPS
from harness.plan.levels import MAX_LEVEL, MAX_LEVELS
from harness.plan.replay import OverLength, Replay, Selection, select
from harness.plan.traces import TraceError, TraceRow, parse_trace
from harness.workload import OpenLoop, Ramp, TraceSource

#: Less is one burst with nothing around it.
_LEAST_BURSTINESS = 0.01
_MOST_SCALE = 1_000_000


def read_rates(
    text: Mapping[str, str], *, shortest_s: float, longest_s: float
) -> tuple[tuple[float, ...], OpenLoop]:
    """The levels of ``--request-rate`` or of a ramp, and the loop; raises OptionError.

    ``shortest_s`` and ``longest_s``: of the window, and of the whole level.
    """
    ramp = _ramp(text)
    warmup_s = seconds("--warmup-seconds", text["warmup_seconds"], zero=True)
    if ramp is not None:
        levels: tuple[float, ...] = (ramp.end_rps,)
        if warmup_s >= ramp.seconds:
            raise OptionError(
                "--warmup-seconds", text["warmup_seconds"], f"less than {ramp.seconds:g}, the ramp"
            )
    else:
        levels = parse_rates(text["request_rate"])
        if warmup_s + shortest_s > longest_s or warmup_s == longest_s:
            raise OptionError(
                "--warmup-seconds",
                text["warmup_seconds"],
                "seconds that leave room for --min-level-seconds within --max-level-seconds "
                f"({longest_s:g})",
            )
    return levels, OpenLoop(
        burstiness=read_burstiness(text),
        max_concurrency=_max_concurrency(text),
        warmup_s=warmup_s,
        ramp=ramp,
    )


def parse_rates(text: str, option: str = "--request-rate") -> tuple[float, ...]:
    """Read ``0.5,1,2``: requests per second, rising; raises OptionError."""
    rates = [decimal(part.strip()) for part in text.split(",")]
    known = [rate for rate in rates if rate is not None and 0 < rate <= MAX_LEVEL]
    if len(known) < len(rates) or not all(a < b for a, b in pairwise(known)):
        expected = f"rising requests per second such as 0.5,1,2, each above 0, {MAX_LEVEL} at most"
        raise OptionError(option, text, expected)
    if len(known) > MAX_LEVELS:
        raise OptionError(option, text, f"at most {MAX_LEVELS} rates")
    return tuple(known)


def _ramp(text: Mapping[str, str]) -> Ramp | None:
    strategy, ends = text["ramp_up_strategy"], ("start", "end")
    if not strategy:
        for end in ends:
            if text[f"ramp_up_{end}_rps"]:
                raise OptionError("--ramp-up-strategy", "", f"{' or '.join(RAMPS)}")
        return None
    if strategy not in RAMPS:
        raise OptionError("--ramp-up-strategy", strategy, " or ".join(RAMPS))
    if text["request_rate"] != DEFAULT_RATES:
        raise OptionError(
            "--request-rate", text["request_rate"], "none beside a ramp, which is the rate"
        )
    first, last = (_rate(f"--ramp-up-{end}-rps", text[f"ramp_up_{end}_rps"]) for end in ends)
    return Ramp(
        strategy="linear" if strategy == "linear" else "exponential",
        start_rps=first,
        end_rps=last,
        seconds=seconds("--ramp-up-seconds", text["ramp_up_seconds"]),
    )


def _rate(option: str, text: str) -> float:
    rate = decimal(text)
    if rate is None or not 0 < rate <= MAX_LEVEL:
        raise OptionError(option, text, f"requests per second, more than 0, {MAX_LEVEL} at most")
    return rate


def read_burstiness(options: Mapping[str, str]) -> float | None:
    """``--burstiness``; None for equal gaps; raises OptionError."""
    text = options["burstiness"]
    if text == "inf":
        return None
    shape = decimal(text)
    if shape is None or shape < _LEAST_BURSTINESS:
        raise OptionError(
            "--burstiness", text, f"a number, {_LEAST_BURSTINESS} or more, or inf for equal gaps"
        )
    return shape


def _max_concurrency(text: Mapping[str, str]) -> int | None:
    value = text["max_concurrency"]
    return whole("--max-concurrency", value, most=MAX_LEVEL) if value else None


def read_replay(text: Mapping[str, str]) -> tuple[Replay, OpenLoop]:
    """The requests of ``--trace`` and the loop; raises UsageError, one clear line."""
    if text["endpoint"] != "completions":
        raise OptionError(
            "--endpoint", text["endpoint"], "completions: a trace states lengths in tokens"
        )
    asked = _selection(text)
    concurrency = _max_concurrency(text)
    warmup_s = seconds("--warmup-seconds", text["warmup_seconds"], zero=True)
    path = Path(text["trace"])
    rows, sha256 = read_trace(text["trace"])
    replay = select(rows, asked)
    if not replay.rows:
        raise _nothing_left(text, rows, replay)
    if replay.rows[-1].at_s < warmup_s:
        last_s = replay.rows[-1].at_s
        raise OptionError(
            "--warmup-seconds", text["warmup_seconds"], f"at most {last_s:g}, the last arrival"
        )
    source = TraceSource(
        name=path.name,
        sha256=sha256,
        start_s=asked.start_s,
        end_s=asked.end_s,
        time_scale=asked.time_scale,
        max_prompt_tokens=asked.max_prompt_tokens,
        max_output_tokens=asked.max_output_tokens,
        over_length=asked.over_length,
        requests=len(replay.rows),
        shortened=replay.shortened,
        skipped=replay.skipped,
        shared_prefixes=replay.shares_prefixes,
    )
    loop = OpenLoop(burstiness=None, max_concurrency=concurrency, warmup_s=warmup_s, trace=source)
    return replay, loop


def read_trace(path: str) -> tuple[tuple[TraceRow, ...], str]:
    """(rows, SHA-256 of the file); raises UsageError with the line that is wrong."""
    if not path:
        raise UsageError("--trace: none given; expected a trace file, CSV or JSONL")
    try:
        content = Path(path).read_bytes()
        rows = parse_trace(content.decode("utf-8").splitlines())
    except OSError as error:
        raise UsageError(
            f"--trace: {path} cannot be read ({error.strerror}); expected a CSV or JSONL file"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"--trace: {path}, line {line}: no UTF-8; expected a text file") from error
    except TraceError as error:
        raise UsageError(f"--trace: {path}, {error}") from error
    return rows, hashlib.sha256(content).hexdigest()


def _selection(text: Mapping[str, str]) -> Selection:
    start_s, end_s = parse_window(text["window"])
    scale = decimal(text["time_scale"])
    if not scale or scale > _MOST_SCALE:
        raise OptionError(
            "--time-scale", text["time_scale"], "a number above 0, such as 0.5 for twice as fast"
        )
    caps = [
        whole(f"--max-{side}-tokens", value, most=MAX_TOKENS) if value else None
        for side in ("prompt", "output")
        for value in [text[f"max_{side}_tokens"]]
    ]
    if text["over_length"] not in OVER_LENGTH:
        raise OptionError("--over-length", text["over_length"], "clip, scale or skip")
    return Selection(
        start_s=start_s,
        end_s=end_s,
        time_scale=scale,
        max_prompt_tokens=caps[0],
        max_output_tokens=caps[1],
        over_length=cast("OverLength", text["over_length"]),
    )


def parse_window(text: str, option: str = "--window") -> tuple[float, float | None]:
    """Read ``60:120``, ``:120`` or ``60:``; empty is all; raises OptionError."""
    if not text:
        return 0.0, None
    first, colon, last = (part.strip() for part in text.partition(":"))
    start_s = decimal(first) if first else 0.0
    end_s = decimal(last) if last else None
    good = colon and start_s is not None and start_s <= MAX_SECONDS
    good = good and (not last or (end_s is not None and end_s <= MAX_SECONDS))
    if not good or start_s is None or (end_s is not None and end_s <= start_s):
        raise OptionError(option, text, "START:END in seconds of the trace, START before END")
    return start_s, end_s


def _nothing_left(
    text: Mapping[str, str], rows: tuple[TraceRow, ...], replay: Replay
) -> UsageError:
    """Why no request is left of a trace that has some."""
    if replay.skipped:
        return UsageError(
            f"--over-length: skip leaves none of {replay.skipped} requests; expected higher "
            "--max-prompt-tokens and --max-output-tokens, or clip"
        )
    return OptionError(
        "--window", text["window"], f"a part with requests: the trace ends at {rows[-1].at_s:g} s"
    )
