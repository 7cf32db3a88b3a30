"""What the user asked for, validated once into a frozen object. Pure.

All values arrive as text, from the command line, the environment or a form of Locust's
web page; each is read by one function here that names the option when it is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from harness.errors import OptionError
from harness.live.feed import DEFAULT_PORT
from harness.load.dialect import EndpointName
from harness.observe.dcgm import TARGET as DCGM_TARGET
from harness.observe.dcgm import parse_gpus
from harness.plan.levels import parse_levels
from harness.records import Slo, Workload

DEFAULT_BACKENDS = "paged=http://127.0.0.1:8000,contiguous=http://127.0.0.1:8001"
DEFAULT_PROMETHEUS = "http://127.0.0.1:9090"
#: the value of ``--prometheus-url`` that lets the local server be used when it fits
PROMETHEUS_AUTO = "auto"
PROMETHEUS_OFF = "none"
DEFAULT_METRICS_HOST = "127.0.0.1"
#: the value of ``--metrics-port`` that takes the usual port when it is free
METRICS_AUTO = "auto"
METRICS_OFF = "none"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SLO_NAMES = ("ttft", "tpot", "e2e")
_LAST_PORT = 65535


@dataclass(frozen=True)
class BackendAddress:
    """A server under test, as the user named it."""

    name: str
    url: str


@dataclass(frozen=True)
class MetricsAddress:
    """Where the load serves its own live metrics."""

    host: str
    #: 0: any free one; None: nowhere
    port: int | None
    #: the user named the port, so that another program on it is an error
    named: bool


@dataclass(frozen=True)
class LoadSettings:
    """One run, as asked for."""

    backends: tuple[BackendAddress, ...]
    #: the user named none, so these are the local stack's
    default_backends: bool
    workload: Workload
    slo: Slo
    max_failure_rate: float
    results_dir: Path
    #: a URL, PROMETHEUS_AUTO or PROMETHEUS_OFF
    prometheus_url: str
    dcgm_url: str
    #: backend name -> GPU UUIDs
    gpus: Mapping[str, tuple[str, ...]]
    #: None when the server serves one model only
    model: str | None
    #: what the KV bytes per token are computed from where no server states them
    model_config: str | None
    metrics: MetricsAddress
    api_key: str | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> EndpointName:
        """Which API is loaded."""
        return cast("EndpointName", self.workload.endpoint)


def read_settings(scenario: str, options: Mapping[str, object]) -> LoadSettings:
    """Validate the options of a scenario; raises OptionError for the first bad one.

    ``options`` maps an option's name without its dashes (``min_requests``) to its text.
    """
    text = {key: "" if value is None else str(value).strip() for key, value in options.items()}
    backends = parse_backends(text["backends"])
    return LoadSettings(
        backends=backends,
        default_backends=text["backends"] == DEFAULT_BACKENDS,
        workload=_workload(scenario, text),
        slo=parse_slo(text["slo"]),
        max_failure_rate=_ratio("--max-failure-rate", text["max_failure_rate"]),
        results_dir=Path(text["results_dir"] or "results"),
        prometheus_url=_prometheus(text["prometheus_url"]),
        dcgm_url=_web_url("--dcgm-url", text["dcgm_url"]),
        gpus=_gpus(options.get("gpu"), tuple(b.name for b in backends)),
        model=text["model"] or None,
        model_config=text["model_config"] or None,
        metrics=parse_metrics(text["metrics_host"], text["metrics_port"]),
        api_key=text["api_key"] or None,
    )


def _workload(scenario: str, text: Mapping[str, str]) -> Workload:
    levels = parse_levels(text["levels"])
    least_s = _seconds("--min-level-seconds", text["min_level_seconds"], zero=True)
    most_s = _seconds("--max-level-seconds", text["max_level_seconds"])
    if most_s < least_s:
        raise OptionError("--max-level-seconds", text["max_level_seconds"], f"at least {least_s:g}")
    if text["endpoint"] not in ("completions", "chat"):
        raise OptionError("--endpoint", text["endpoint"], "completions or chat")
    return Workload(
        scenario=scenario,
        endpoint=text["endpoint"],
        prompt_tokens=_whole("--prompt-tokens", text["prompt_tokens"]),
        output_tokens=_whole("--output-tokens", text["output_tokens"]),
        levels=levels,
        repeats=_whole("--repeats", text["repeats"]),
        seed=_whole("--seed", text["seed"], least=0),
        min_requests=parse_min_requests(text["min_requests"], len(levels)),
        min_level_s=least_s,
        max_level_s=most_s,
        request_timeout_s=_seconds("--request-timeout", text["request_timeout"]),
        idle_timeout_s=_seconds("--idle-timeout", text["idle_timeout"]),
    )


def parse_backends(text: str, option: str = "--backends") -> tuple[BackendAddress, ...]:
    """Read ``paged=http://host:8000,other=https://host/path``; raises OptionError."""
    expected = f"name=url,... such as {DEFAULT_BACKENDS}"
    found: list[BackendAddress] = []
    for part in text.split(","):
        name, equals, url = part.strip().partition("=")
        if not equals or not _NAME.fullmatch(name) or name == DCGM_TARGET:
            raise OptionError(option, part.strip(), expected)
        if name in (backend.name for backend in found):
            raise OptionError(option, part.strip(), "each backend's name once")
        found.append(BackendAddress(name, _base_url(option, url)))
    return tuple(found)


def _base_url(option: str, url: str) -> str:
    """A backend's URL without a trailing ``/v1``."""
    parts = urlsplit(_web_url(option, url))
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _web_url(option: str, url: str, *, credentials: bool = False) -> str:
    expected = "a URL such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise OptionError(option, url, expected) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise OptionError(option, url, expected)
    if "@" in parts.netloc and not credentials:
        shown = urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
        raise OptionError(option, shown, "a URL without credentials (see --api-key)")
    return url


def _prometheus(text: str) -> str:
    if text in (PROMETHEUS_AUTO, PROMETHEUS_OFF, ""):
        return text or PROMETHEUS_AUTO
    return _web_url("--prometheus-url", text, credentials=True)


def parse_slo(text: str, option: str = "--slo") -> Slo:
    """Read ``ttft:500 tpot:50`` (milliseconds); empty asks nothing; raises OptionError."""
    expected = 'limits in milliseconds such as "ttft:500 tpot:50" (names: ttft, tpot, e2e)'
    limits: dict[str, float] = {}
    for part in re.split(r"[\s,]+", text.strip()) if text.strip() else []:
        name, _, value = part.partition(":")
        number = _number(value)
        if name not in _SLO_NAMES or name in limits or number is None or number <= 0:
            raise OptionError(option, text, expected)
        limits[name] = number / 1000
    return Slo(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"), e2e_s=limits.get("e2e"))


def parse_min_requests(text: str, levels: int, option: str = "--min-requests") -> tuple[int, ...]:
    """Read one whole number, or one per level; raises OptionError."""
    numbers = tuple(_whole(option, part.strip()) for part in text.split(","))
    if len(numbers) not in (1, levels):
        raise OptionError(option, text, f"one number, or one for each of the {levels} levels")
    return numbers * levels if len(numbers) == 1 else numbers


def _gpus(values: object, backends: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Read ``--gpu name=UUID`` values, repeated or joined by commas; raises OptionError."""
    given = values if isinstance(values, list | tuple) else [values] if values else []
    text = ",".join(str(value) for value in given)
    found = parse_gpus(text, backends) if text else {}
    return {name: tuple(uuids) for name, uuids in found.items()}


def parse_metrics(host: str, port: str) -> MetricsAddress:
    """Read ``--metrics-host`` and ``--metrics-port``; raises OptionError."""
    if port in (METRICS_AUTO, ""):
        return MetricsAddress(host or DEFAULT_METRICS_HOST, DEFAULT_PORT, named=False)
    if port == METRICS_OFF:
        return MetricsAddress(host or DEFAULT_METRICS_HOST, None, named=True)
    if not port.isascii() or not port.isdecimal() or int(port) > _LAST_PORT:
        raise OptionError(
            "--metrics-port",
            port,
            f"a port up to {_LAST_PORT}, 0 for any, auto for {DEFAULT_PORT} when it is free, none",
        )
    return MetricsAddress(host or DEFAULT_METRICS_HOST, int(port), named=True)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(option: str, text: str, least: int = 1) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(option, text, f"a whole number, {least} or more")
    return number


def _seconds(option: str, text: str, *, zero: bool = False) -> float:
    number = _number(text)
    if number is None or number < 0 or (number == 0 and not zero):
        raise OptionError(
            option, text, "seconds, more than 0" if not zero else "seconds, 0 or more"
        )
    return number


def _ratio(option: str, text: str) -> float:
    number = _number(text)
    if number is None or not 0 <= number <= 1:
        raise OptionError(option, text, "a part of all requests between 0 and 1, such as 0.01")
    return number
