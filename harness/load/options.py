"""The scenario's options on Locust's command line and web page.

All are text: Locust's page keeps an option's type when it takes a form, and a bad number
would fail there instead of being named. ``harness.load.settings`` reads the values.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Protocol

from harness.live.feed import DEFAULT_PORT
from harness.load.ask_options import CHAT_OPTIONS, MIX_OPTIONS, PREFIX_OPTIONS, RULED_BY_ASKS
from harness.load.knee_options import KNEE_OPTIONS, RULED_BY_SEARCH, VERIFY, VERIFY_HELP
from harness.load.matrix_options import (
    MATRIX_OPTIONS,
    PLAN_ONLY_HELP,
    RESUME,
    RESUME_HELP,
    RULED_BY_SOAK,
    SOAK_OPTIONS,
)
from harness.load.open_options import RATE_OPTIONS, REPLAY_OPTIONS, RULED_BY_TRACE
from harness.load.settings import (
    DEFAULT_BACKENDS,
    DEFAULT_METRICS_HOST,
    DEFAULT_PROMETHEUS,
    METRICS_AUTO,
    PROMETHEUS_AUTO,
)
from harness.load.workload import AskKind
from harness.plan.levels import MAX_LEVEL


class ArgumentTarget(Protocol):
    """Locust's parser, as far as it matters here."""

    def add_argument_group(self, title: str) -> argparse._ArgumentGroup:
        """A titled part of ``--help``."""
        ...


_KEY_VARIABLE = "OPENAI_API_KEY"
_KEY_HELP = "sent to the servers as a bearer token; never written anywhere"
_GPU_HELP = (
    "the GPU that a backend runs on (several: UUID+UUID), for its device memory; may be repeated"
)
_DCGM_URL = "http://127.0.0.1:9400/metrics"
_DCGM_HELP = "metrics page of NVIDIA's DCGM exporter, read when --gpu is given"

#: option -> (default, environment variable, help); shown on the web page too
_TEXT_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "backends": (
        DEFAULT_BACKENDS,
        "KVKNEE_BACKENDS",
        "servers under test as name=url,...; any OpenAI-style server will do",
    ),
    "levels": (
        "1,4,16,32",
        "KVKNEE_LEVELS",
        f"concurrent requests, level by level; {MAX_LEVEL:,} at most",
    ),
    "prompt-tokens": ("512", "KVKNEE_PROMPT_TOKENS", "length of each prompt"),
    "output-tokens": ("128", "KVKNEE_OUTPUT_TOKENS", "length of each answer"),
    "min-requests": (
        "100",
        "KVKNEE_MIN_REQUESTS",
        "counted requests per level: one number, or one per level",
    ),
    "min-level-seconds": ("5", "KVKNEE_MIN_LEVEL_SECONDS", "shortest measured window"),
    "ramp-up-seconds": (
        "0",
        "KVKNEE_RAMP_UP_SECONDS",
        "the users of a level send their first requests spread over this time; 0: all at once, "
        "as one burst that the server then sees again and again",
    ),
    "max-level-seconds": (
        "120",
        "KVKNEE_MAX_LEVEL_SECONDS",
        "a level counts no more requests after this time, however few it has",
    ),
    "slo": (
        "ttft:500 tpot:50",
        "KVKNEE_SLO",
        'limits per request in milliseconds: "ttft:500 tpot:50", also e2e; "" for none',
    ),
    "request-timeout": ("300", "KVKNEE_REQUEST_TIMEOUT", "seconds for a whole request"),
    "idle-timeout": (
        "60",
        "KVKNEE_IDLE_TIMEOUT",
        "seconds without a byte, the wait for the first one included",
    ),
    "max-failure-rate": (
        "0.01",
        "KVKNEE_MAX_FAILURE_RATE",
        "part of all requests that may fail before the exit code is 1",
    ),
    "repeats": ("1", "KVKNEE_REPEATS", "how often the list of levels is walked"),
    "seed": ("0", "KVKNEE_SEED", "of the prompts"),
    "endpoint": (
        "completions",
        "KVKNEE_ENDPOINT",
        "completions (prompts of exact length as token ids) or chat (calibrated text)",
    ),
    "model": ("", "KVKNEE_MODEL", "needed only when a server serves several models"),
    "model-config": (
        "",
        "KVKNEE_MODEL_CONFIG",
        "config.json, folder or hub id that the KV bytes per token are computed from where a "
        "server does not state them",
    ),
    "results-dir": ("results", "KVKNEE_RESULTS_DIR", "each run makes a folder in here"),
    "prometheus-url": (
        PROMETHEUS_AUTO,
        "KVKNEE_PROMETHEUS_URL",
        "read server metrics from this Prometheus; auto: from "
        f"{DEFAULT_PROMETHEUS} when it scrapes our servers; none: scrape them ourselves",
    ),
}

#: of a closed loop alone; an open one has a ramp of its own
_CLOSED_LOOP = frozenset({"levels", "ramp-up-seconds"})

#: of the process, not of a run: kept off the web page
_PROCESS_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "metrics-host": (
        DEFAULT_METRICS_HOST,
        "KVKNEE_METRICS_HOST",
        "address on which the load serves its own live metrics",
    ),
    "metrics-port": (
        METRICS_AUTO,
        "KVKNEE_METRICS_PORT",
        f"port of the live metrics (GET /metrics); auto: {DEFAULT_PORT} when it is free; "
        "0: any free one; none: no live metrics",
    ),
}


_ASK_OPTIONS: Mapping[str, Mapping[str, tuple[str, str, str]]] = {
    "mix": MIX_OPTIONS,
    "prefix": PREFIX_OPTIONS,
    "chat": CHAT_OPTIONS,
}


def text_options(kind: AskKind) -> dict[str, tuple[str, str, str]]:
    """The options of one kind of scenario, those that say what is asked first."""
    if kind == "levels":
        return dict(_TEXT_OPTIONS)
    if kind == "matrix":
        return {**_TEXT_OPTIONS, **MATRIX_OPTIONS}
    if kind == "soak":
        kept = {n: item for n, item in _TEXT_OPTIONS.items() if n not in RULED_BY_SOAK}
        return {**kept, **SOAK_OPTIONS}
    if kind == "knee":
        left_out = {"backends", *KNEE_OPTIONS} | RULED_BY_SEARCH
        rest = {n: item for n, item in _TEXT_OPTIONS.items() if n not in left_out}
        return {"backends": _TEXT_OPTIONS["backends"], **KNEE_OPTIONS, **rest}
    if kind in _ASK_OPTIONS:
        mine, ruled = _ASK_OPTIONS[kind], RULED_BY_ASKS[kind]
        rest = {n: item for n, item in _TEXT_OPTIONS.items() if n not in ruled and n not in mine}
        return {"backends": rest.pop("backends"), **mine, **rest}
    own = RATE_OPTIONS if kind == "rate" else REPLAY_OPTIONS
    left_out = {"backends", *_CLOSED_LOOP} | (RULED_BY_TRACE if kind == "trace" else set())
    rest = {name: item for name, item in _TEXT_OPTIONS.items() if name not in left_out}
    return {"backends": _TEXT_OPTIONS["backends"], **own, **rest}


def add_options(parser: ArgumentTarget, kind: AskKind = "levels") -> None:
    """Add the options of one kind of scenario to Locust's parser, in a group of their own."""
    group = parser.add_argument_group("kvknee")
    for name, (default, variable, text) in text_options(kind).items():
        # env_var is an extension of Locust's parser
        action = _add(group, name, default, text, env_var=variable)
        # a group's arguments get no place on the web page by themselves
        action.include_in_web_ui = True  # type: ignore[attr-defined]
    for name, (default, variable, text) in _PROCESS_OPTIONS.items():
        _add(group, name, default, text, env_var=variable)
    _add_flags(group, kind)
    _add(group, "gpu", [], _GPU_HELP, action="append")
    _add(group, "dcgm-url", _DCGM_URL, _DCGM_HELP)
    action = _add(group, "api-key", "", _KEY_HELP, env_var=_KEY_VARIABLE)
    # kept off the web page, which anyone who can reach it can read
    action.include_in_web_ui = False  # type: ignore[attr-defined]
    action.is_secret = True  # type: ignore[attr-defined]
    group.add_argument(
        "--scenario-help",
        action=_ScenarioHelp,
        nargs=0,
        const=kind,
        help="show these options and exit",
    )


def scenario_help(kind: AskKind = "levels") -> str:
    """All options with their defaults and environment variables.

    Locust answers ``--help`` before it reads a locustfile, so its text cannot have them.
    """
    parser = argparse.ArgumentParser(prog="locust -f SCENARIO", usage="%(prog)s", add_help=False)
    group = parser.add_argument_group("options of the scenario, beside Locust's own (--help)")
    for name, (default, variable, text) in {**text_options(kind), **_PROCESS_OPTIONS}.items():
        _add(group, name, default, f"{text} (default: {default or 'none'}; or {variable})")
    _add_flags(group, kind)
    if kind == "soak":
        group.description = (
            "how long each backend is loaded: Locust's own --run-time (such as 10m or 8h)"
        )
    _add(group, "gpu", [], _GPU_HELP, action="append")
    _add(group, "dcgm-url", _DCGM_URL, f"{_DCGM_HELP} (default: {_DCGM_URL})")
    _add(group, "api-key", "", f"{_KEY_HELP} (or {_KEY_VARIABLE})")
    return parser.format_help()


def _add_flags(group: argparse._ArgumentGroup, kind: AskKind) -> None:
    """Of one command line only: kept off the web page and out of the environment."""
    actions: list[argparse.Action] = []
    if kind == "matrix":
        actions.append(
            group.add_argument(f"--{RESUME}", default="", metavar="RUN_DIR", help=RESUME_HELP)
        )
        actions.append(
            group.add_argument(
                "--plan-only",
                "--dry-run",
                action="store_true",
                dest="plan_only",
                help=PLAN_ONLY_HELP,
            )
        )
    if kind == "knee":
        actions.append(
            group.add_argument(
                f"--{VERIFY}",
                action=argparse.BooleanOptionalAction,
                default=True,
                help=VERIFY_HELP,
            )
        )
    for action in actions:
        action.include_in_web_ui = False  # type: ignore[attr-defined]


def _add(
    group: argparse._ArgumentGroup, name: str, default: object, text: str, **more: Any
) -> argparse.Action:
    metavar = "BACKEND=UUID" if name == "gpu" else name.upper().replace("-", "_")
    return group.add_argument(f"--{name}", default=default, metavar=metavar, help=text, **more)


class _ScenarioHelp(argparse.Action):
    """``--scenario-help``; its ``const`` is the kind of scenario."""

    const: AskKind

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        parser.exit(0, scenario_help(self.const))


def default_texts(kind: AskKind) -> dict[str, str]:
    """The defaults of one kind of scenario, by name with underscores."""
    return {name.replace("-", "_"): item[0] for name, item in text_options(kind).items()}


def option_values(namespace: object, kind: AskKind = "levels") -> dict[str, object]:
    """Our options of a parsed command line, by name with underscores."""
    names = [*text_options(kind), *_PROCESS_OPTIONS, "gpu", "dcgm-url", "api-key"]
    names += {"matrix": [RESUME, "plan-only"], "soak": ["run-time"], "knee": [VERIFY]}.get(kind, [])
    return {key: getattr(namespace, key) for key in (name.replace("-", "_") for name in names)}
