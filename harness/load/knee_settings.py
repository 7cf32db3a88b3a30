"""The options of a knee search, validated."""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import OptionError, UsageError
from harness.load.knee_options import CLOSED, OPEN
from harness.load.numbers import (
    MAX_REQUESTS,
    MAX_SEED,
    MAX_TOKENS,
    decimal,
    seconds,
    whole,
)
from harness.load.open_settings import parse_rates, read_burstiness
from harness.plan.levels import MAX_LEVEL
from harness.workload import KneeAsk, OpenLoop, Workload

#: Fewer say next to nothing about a share of nineteen in twenty.
_LEAST_REQUESTS = 5


def read_search(scenario: str, text: Mapping[str, str]) -> Workload:
    """The workload of a search, whose one level is the highest; raises UsageError."""
    loop = text["loop"]
    if loop not in (CLOSED, OPEN):
        raise OptionError("--loop", loop, f"{CLOSED} or {OPEN}")
    most = whole("--max-concurrency", text["max_concurrency"], most=MAX_LEVEL)
    level_s = seconds("--max-level-seconds", text["max_level_seconds"])
    open_loop, highest = None, float(most)
    if loop == OPEN:
        highest = _one_rate(text["max_request_rate"])
        open_loop = _open_loop(text, most, level_s)
    return Workload(
        scenario=scenario,
        endpoint=text["endpoint"],
        prompt_tokens=whole("--prompt-tokens", text["prompt_tokens"], most=MAX_TOKENS),
        output_tokens=whole("--output-tokens", text["output_tokens"], most=MAX_TOKENS),
        levels=(highest,),
        seed=whole("--seed", text["seed"], least=0, most=MAX_SEED),
        min_requests=(
            whole("--min-requests", text["min_requests"], least=_LEAST_REQUESTS, most=MAX_REQUESTS),
        ),
        min_level_s=0.0,
        max_level_s=level_s,
        request_timeout_s=seconds("--request-timeout", text["request_timeout"]),
        idle_timeout_s=seconds("--idle-timeout", text["idle_timeout"]),
        open_loop=open_loop,
        search=KneeAsk(
            attainment=_attainment(text["attainment"]),
            budget_s=_budget_s(text["budget_minutes"]),
            verify=text["verify"] != "False",
        ),
    )


def _one_rate(text: str) -> float:
    rates = parse_rates(text, "--max-request-rate")
    if len(rates) != 1:
        raise OptionError("--max-request-rate", text, "one number of requests per second")
    return rates[0]


def _open_loop(text: Mapping[str, str], most: int, level_s: float) -> OpenLoop:
    warmup_s = seconds("--warmup-seconds", text["warmup_seconds"], zero=True)
    if warmup_s >= level_s:
        raise OptionError(
            "--warmup-seconds",
            text["warmup_seconds"],
            f"less than --max-level-seconds ({level_s:g})",
        )
    return OpenLoop(burstiness=read_burstiness(text), max_concurrency=most, warmup_s=warmup_s)


def _attainment(text: str) -> float:
    share = decimal(text)
    if share is None or not 0.5 <= share < 1:
        raise OptionError(
            "--attainment", text, "a share of the requests from 0.5 up to, not including, 1"
        )
    return share


def _budget_s(text: str) -> float | None:
    if not text:
        return None
    minutes = decimal(text)
    if not minutes:
        raise OptionError("--budget-minutes", text, "minutes, more than 0, such as 30")
    return minutes * 60


def require_goal(*, slo: bool, metrics: Mapping[str, bool]) -> None:
    """Raise UsageError for a server of which nothing could be told.

    ``metrics``: whether each backend's metrics say how many requests wait.
    """
    blind = [name for name, has in metrics.items() if not has]
    if blind and not slo:
        raise UsageError(
            f"--slo: none, and {', '.join(blind)} has no metrics of its queue, so nothing would "
            'tell a good level from a bad one; expected limits such as "ttft:500 tpot:50", or a '
            "server with /metrics"
        )
