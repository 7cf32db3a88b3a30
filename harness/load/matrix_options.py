"""The options that a matrix and a soak have for themselves, or with other words.

name -> (default, environment variable, help), as in ``harness.load.options``.
"""

from __future__ import annotations

from collections.abc import Mapping

#: ``--beyond-kv-budget``
RUN, SKIP = "run", "skip"

MATRIX_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "prompt-tokens": (
        "128,512,2048,8192",
        "KVKNEE_PROMPT_TOKENS",
        "prompt lengths, each with every output length",
    ),
    "output-tokens": ("32,128,512", "KVKNEE_OUTPUT_TOKENS", "answer lengths"),
    "beyond-kv-budget": (
        RUN,
        "KVKNEE_BEYOND_KV_BUDGET",
        "levels whose requests do not all fit into the KV budget: run (requests wait) or skip",
    ),
    "budget-minutes": (
        "",
        "KVKNEE_BUDGET_MINUTES",
        "cells that would end later than this, by the estimate, are left out; empty: no limit",
    ),
}
#: of one command line, so neither in the environment nor on the web page
RESUME = "resume"
RESUME_HELP = (
    "go on with this interrupted run: finished cells stay, the one that had begun is done "
    "again; options left out are the run's own"
)
PLAN_ONLY_HELP = "show the plan with its estimated time, and end"

SOAK_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "levels": ("8", "KVKNEE_LEVELS", "concurrent requests: one level"),
    "cycle-seconds": (
        "",
        "KVKNEE_CYCLE_SECONDS",
        "length of a stretch of load between two pauses; empty: a twentieth of --run-time, "
        "20 to 600",
    ),
    "rest-seconds": (
        "4",
        "KVKNEE_REST_SECONDS",
        "pause after each stretch, in which nothing is in flight",
    ),
    "cancel-share": (
        "0.1",
        "KVKNEE_CANCEL_SHARE",
        "share of the requests whose stream the client closes before its end",
    ),
    "max-memory-growth": (
        "64MiB",
        "KVKNEE_MAX_MEMORY_GROWTH",
        "growth per hour of process memory, and of KV bytes at rest, that is no drift",
    ),
    "max-latency-growth": (
        "0.1",
        "KVKNEE_MAX_LATENCY_GROWTH",
        "growth per hour of TTFT and TPOT that is no drift, as a share of their median; empty: "
        "shown, not judged (a run of minutes cannot tell it)",
    ),
}
#: a soak says itself how long and how often
RULED_BY_SOAK = frozenset({"repeats", "min-requests", "min-level-seconds", "max-level-seconds"})
