"""The options of closed loops whose requests differ: name -> (default, variable, help).

A name that the ordinary options have, too, has another default or another meaning here.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.plan.mix import DEFAULT_LENGTHS

_Options = Mapping[str, tuple[str, str, str]]

OVER_LENGTHS = ("scale", "clip", "skip")

MIX_OPTIONS: _Options = {
    "levels": (
        "64",
        "KVKNEE_LEVELS",
        "concurrent requests; more than any server holds, so that its memory is full",
    ),
    "trace": (
        "",
        "KVKNEE_TRACE",
        "take the lengths of this trace, CSV or JSONL, with the columns of Azure's or Mooncake's "
        "public traces or arrival_s, prompt_tokens, output_tokens; its times are not used",
    ),
    "lengths": (
        DEFAULT_LENGTHS,
        "KVKNEE_LENGTHS",
        "without a trace: lognormal:PROMPT,SIGMA,OUTPUT,SIGMA, medians in tokens",
    ),
    "context": (
        "",
        "KVKNEE_CONTEXT",
        "prompt and answer together fit in so many tokens; by default the smallest max_model_len "
        "of the servers",
    ),
    "over-length": (
        "scale",
        "KVKNEE_OVER_LENGTH",
        "where requests are longer than the context: scale makes all shorter by one factor, clip "
        "cuts the long ones, skip leaves them out (drawn lengths are clipped)",
    ),
    "length-count": (
        "2000",
        "KVKNEE_LENGTH_COUNT",
        "requests in the list, the first of a trace; every level begins it anew",
    ),
}

PREFIX_OPTIONS: _Options = {
    "levels": ("8", "KVKNEE_LEVELS", "concurrent requests, level by level"),
    "prefix-tokens": ("512", "KVKNEE_PREFIX_TOKENS", "length of the shared system prompt"),
    "reuse": (
        "0,0.9",
        "KVKNEE_REUSE",
        "shares of the requests that begin with it, 0 to 1, rising; a row each. The others begin "
        "with words of their own, of the same length",
    ),
    "prompt-tokens": ("64", "KVKNEE_PROMPT_TOKENS", "own words behind the system prompt"),
    "output-tokens": ("64", "KVKNEE_OUTPUT_TOKENS", "length of each answer"),
}

CHAT_OPTIONS: _Options = {
    "levels": ("8", "KVKNEE_LEVELS", "concurrent conversations, level by level"),
    "turns": ("5", "KVKNEE_TURNS", "turns of each conversation"),
    "think-time": (
        "1",
        "KVKNEE_THINK_TIME",
        "mean seconds between an answer's end and the next turn, drawn from an exponential",
    ),
    "system-tokens": (
        "256",
        "KVKNEE_SYSTEM_TOKENS",
        "system prompt that all conversations begin with; 0 for none",
    ),
    "user-tokens": ("64", "KVKNEE_USER_TOKENS", "what a user says at each turn"),
    "output-tokens": ("64", "KVKNEE_OUTPUT_TOKENS", "length of each answer"),
}

#: What these requests state for themselves.
RULED_BY_ASKS: Mapping[str, frozenset[str]] = {
    "mix": frozenset({"prompt-tokens", "output-tokens"}),
    "prefix": frozenset(),
    "chat": frozenset({"prompt-tokens"}),
}
