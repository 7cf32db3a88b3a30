"""The options that only open loops have: name -> (default, environment variable, help)."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_RATES = "1,2,4"
RAMPS = ("linear", "exponential")
OVER_LENGTH = ("clip", "scale", "skip")

_MAX_CONCURRENCY = (
    "",
    "KVKNEE_MAX_CONCURRENCY",
    "requests in flight at most; what is due beyond it waits and is late, none is dropped",
)

#: Rates as vLLM's benchmark spells them.
RATE_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "request-rate": (
        DEFAULT_RATES,
        "KVKNEE_REQUEST_RATE",
        "requests per second, level by level, whatever the server does",
    ),
    "burstiness": (
        "1",
        "KVKNEE_BURSTINESS",
        "shape of the gamma distribution of the gaps: 1 is Poisson, less is burstier, more is "
        "steadier, inf: equal gaps",
    ),
    "max-concurrency": _MAX_CONCURRENCY,
    "ramp-up-strategy": (
        "",
        "KVKNEE_RAMP_UP_STRATEGY",
        "linear or exponential: one level whose rate rises, instead of --request-rate",
    ),
    "ramp-up-start-rps": ("", "KVKNEE_RAMP_UP_START_RPS", "rate at the start of the ramp"),
    "ramp-up-end-rps": ("", "KVKNEE_RAMP_UP_END_RPS", "rate at its end"),
    "ramp-up-seconds": ("60", "KVKNEE_RAMP_UP_SECONDS", "length of the ramp"),
    "warmup-seconds": (
        "5",
        "KVKNEE_WARMUP_SECONDS",
        "requests due in the first seconds of a level are not counted",
    ),
}

REPLAY_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "trace": (
        "",
        "KVKNEE_TRACE",
        "trace file, CSV or JSONL, with the columns of Azure's or Mooncake's public traces or "
        "arrival_s, prompt_tokens, output_tokens",
    ),
    "time-scale": ("1", "KVKNEE_TIME_SCALE", "of the trace's time: 0.5 is twice as fast"),
    "window": (
        "",
        "KVKNEE_WINDOW",
        "START:END in seconds of the trace, before scaling; either may be left out",
    ),
    "max-prompt-tokens": ("", "KVKNEE_MAX_PROMPT_TOKENS", "longest prompt"),
    "max-output-tokens": ("", "KVKNEE_MAX_OUTPUT_TOKENS", "longest answer"),
    "over-length": (
        "clip",
        "KVKNEE_OVER_LENGTH",
        "what becomes of a longer request: clip cuts it, scale makes all prompts (or answers) "
        "shorter by one factor, skip leaves it out",
    ),
    "max-concurrency": _MAX_CONCURRENCY,
    "warmup-seconds": (
        "0",
        "KVKNEE_WARMUP_SECONDS",
        "requests due in the first seconds of the replay are not counted",
    ),
}
#: What the trace itself says.
RULED_BY_TRACE = frozenset(
    {"prompt-tokens", "output-tokens", "min-requests", "min-level-seconds", "max-level-seconds"}
)
