"""From the options to what is asked of the servers: one reader for each kind of scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from harness.errors import OptionError
from harness.load.ask_settings import read_chat, read_prefix, usual_prompt
from harness.load.knee_settings import read_search
from harness.load.matrix_settings import read_shapes, read_soak
from harness.load.numbers import (
    MAX_REPEATS,
    MAX_REQUESTS,
    MAX_SEED,
    MAX_TOKENS,
    seconds,
    whole,
)
from harness.load.open_settings import read_rates, read_replay
from harness.plan.levels import parse_levels
from harness.plan.replay import Replay
from harness.workload import Asks, Workload

#: What a scenario asks for: requests in flight (of one length, of many, with a shared prefix,
#: in conversations), requests per second, a trace's requests, a matrix of lengths and levels,
#: one level for hours, or a search for the highest level.
AskKind = Literal["levels", "mix", "prefix", "chat", "rate", "trace", "matrix", "soak", "knee"]


def read_workload(
    scenario: str, text: Mapping[str, str], kind: AskKind
) -> tuple[Workload, Replay | None]:
    """The workload of a scenario, and the requests of its trace; raises UsageError."""
    if text["endpoint"] not in ("completions", "chat"):
        raise OptionError("--endpoint", text["endpoint"], "completions or chat")
    if kind == "trace":
        return _replayed(scenario, text)
    if kind == "soak":
        return _soaked(scenario, text), None
    if kind == "knee":
        return read_search(scenario, text), None
    least_s = seconds("--min-level-seconds", text["min_level_seconds"], zero=True)
    most_s = seconds("--max-level-seconds", text["max_level_seconds"])
    if most_s < least_s:
        raise OptionError("--max-level-seconds", text["max_level_seconds"], f"at least {least_s:g}")
    open_loop, shapes, ramp_s = None, None, 0.0
    if kind == "matrix":
        shapes = read_shapes(text)
        longest = max(shapes, key=sum)
        text = {**text, "prompt_tokens": f"{longest[0]}", "output_tokens": f"{longest[1]}"}
    if kind == "rate":
        levels, open_loop = read_rates(text, shortest_s=least_s, longest_s=most_s)
    else:
        levels = parse_levels(text["levels"])
        ramp_s = _ramp_up_s(text["ramp_up_seconds"], most_s)
    asks, prompt_tokens, output_tokens = _asks(text, kind)
    workload = Workload(
        scenario=scenario,
        endpoint=text["endpoint"],
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        levels=levels,
        repeats=whole("--repeats", text["repeats"], most=MAX_REPEATS),
        seed=whole("--seed", text["seed"], least=0, most=MAX_SEED),
        min_requests=parse_min_requests(text["min_requests"], len(levels)),
        min_level_s=least_s,
        max_level_s=most_s,
        request_timeout_s=seconds("--request-timeout", text["request_timeout"]),
        idle_timeout_s=seconds("--idle-timeout", text["idle_timeout"]),
        ramp_up_s=ramp_s,
        open_loop=open_loop,
        shapes=shapes,
        asks=asks,
    )
    return workload, None


def _asks(text: Mapping[str, str], kind: AskKind) -> tuple[Asks | None, int, int]:
    """What sets the requests apart, and their usual prompt and output tokens.

    A mix has neither before the servers have said what they can hold.
    """
    if kind == "mix":
        return None, 1, 1
    output_tokens = whole("--output-tokens", text["output_tokens"], most=MAX_TOKENS)
    if kind == "chat":
        chat = read_chat(text)
        return chat, usual_prompt(chat, output_tokens), output_tokens
    prompt_tokens = whole("--prompt-tokens", text["prompt_tokens"], most=MAX_TOKENS)
    if kind == "prefix":
        prefix = read_prefix(text)
        return prefix, prefix.prefix_tokens + prompt_tokens, output_tokens
    return None, prompt_tokens, output_tokens


def _ramp_up_s(text: str, level_s: float) -> float:
    """Over which users begin; a level must be longer than that."""
    ramp_s = seconds("--ramp-up-seconds", text, zero=True)
    if ramp_s >= level_s:
        words = f"less than --max-level-seconds ({level_s:g})"
        raise OptionError("--ramp-up-seconds", text, words)
    return ramp_s


def _soaked(scenario: str, text: Mapping[str, str]) -> Workload:
    """One level, again and again, with pauses between."""
    run_time = text["run_time"]
    asked = read_soak(text, float(run_time) if run_time else None)
    return Workload(
        scenario=scenario,
        endpoint=text["endpoint"],
        prompt_tokens=whole("--prompt-tokens", text["prompt_tokens"], most=MAX_TOKENS),
        output_tokens=whole("--output-tokens", text["output_tokens"], most=MAX_TOKENS),
        levels=(asked.level,),
        repeats=asked.cycles,
        seed=whole("--seed", text["seed"], least=0, most=MAX_SEED),
        min_requests=(1,),
        min_level_s=asked.cycle_s,
        # a server that is slow to answer everybody's first request shortens no cycle
        max_level_s=2 * asked.cycle_s,
        request_timeout_s=seconds("--request-timeout", text["request_timeout"]),
        idle_timeout_s=seconds("--idle-timeout", text["idle_timeout"]),
        soak=asked.soak,
    )


def _replayed(scenario: str, text: Mapping[str, str]) -> tuple[Workload, Replay]:
    """The workload of a trace: its own rate and lengths, all its requests in one level."""
    replay, open_loop = read_replay(text)
    prompt_tokens, output_tokens = replay.usual
    workload = Workload(
        scenario=scenario,
        endpoint=text["endpoint"],
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        levels=(replay.rate_rps,),
        repeats=whole("--repeats", text["repeats"], most=MAX_REPEATS),
        seed=whole("--seed", text["seed"], least=0, most=MAX_SEED),
        min_requests=(sum(row.at_s >= open_loop.warmup_s for row in replay.rows),),
        min_level_s=replay.length_s,
        max_level_s=replay.length_s,
        request_timeout_s=seconds("--request-timeout", text["request_timeout"]),
        idle_timeout_s=seconds("--idle-timeout", text["idle_timeout"]),
        open_loop=open_loop,
    )
    return workload, replay


def parse_min_requests(text: str, levels: int, option: str = "--min-requests") -> tuple[int, ...]:
    """Read one whole number, or one per level; raises OptionError."""
    numbers = tuple(whole(option, part.strip(), most=MAX_REQUESTS) for part in text.split(","))
    if len(numbers) not in (1, levels):
        raise OptionError(option, text, f"one number, or one for each of the {levels} levels")
    return numbers * levels if len(numbers) == 1 else numbers
