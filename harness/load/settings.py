"""What the user asked for, validated once into a frozen object.

All values arrive as text, from the command line, the environment or a form of Locust's
web page; each is read by one function here that names the option when it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from harness.errors import OptionError, UsageError
from harness.live.feed import DEFAULT_PORT
from harness.load.ask_settings import MixAsk, read_mix
from harness.load.dialect import EndpointName
from harness.load.matrix_settings import MatrixAsk, read_matrix
from harness.load.numbers import decimal, digits, ratio
from harness.load.resume import Resumption
from harness.load.urls import base_url, credentials_url, page_url, without_secrets
from harness.load.workload import AskKind, read_workload
from harness.observe.dcgm import TARGET as DCGM_TARGET
from harness.observe.dcgm import parse_gpus
from harness.observe.process_memory import TARGET_SUFFIX
from harness.plan.mix import Mix
from harness.plan.replay import Replay
from harness.plan.row_levels import prompt_at
from harness.workload import Conversations, Slo, Workload

DEFAULT_BACKENDS = "paged=http://127.0.0.1:8000,contiguous=http://127.0.0.1:8001"
DEFAULT_PROMETHEUS = "http://127.0.0.1:9090"
#: the value of ``--prometheus-url`` that lets the local server be used when it fits
PROMETHEUS_AUTO = "auto"
PROMETHEUS_OFF = "none"
DEFAULT_METRICS_HOST = "127.0.0.1"
#: the value of ``--metrics-port`` that takes the usual port when it is free
METRICS_AUTO = "auto"
METRICS_OFF = "none"

#: file names are made of it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME_RULE = (
    "a backend's name of 1 to 100 ASCII letters, digits, '.', '_' and '-', the first one a "
    f"letter or a digit, the end not {TARGET_SUFFIX!r}, and not {DCGM_TARGET!r}"
)
#: what a header holds
_KEY = re.compile(r"[!-~]*")
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
    #: the requests of a trace, where one is replayed
    replay: Replay | None = field(default=None, repr=False)
    matrix: MatrixAsk | None = None
    #: the run that is gone on with
    resume: Resumption | None = field(default=None, repr=False)

    @property
    def goes_on(self) -> bool:
        """Whether the run outlives the loss of a backend: a matrix has cells of others."""
        return self.matrix is not None

    @property
    def must_fit(self) -> tuple[int, int]:
        """(prompt, output) tokens that a server must hold for there to be anything to measure."""
        return min(self.workload.shapes or (self.longest,), key=sum)

    @property
    def shortest(self) -> tuple[int, int]:
        """(prompt, output) tokens of the request with the shortest prompt."""
        return min(self.workload.shapes or (self.longest,))

    #: lengths, where a mix is asked for, and once they fit the servers the requests
    mix_ask: MixAsk | None = field(default=None, repr=False)
    mix: Mix | None = field(default=None, repr=False)

    @property
    def longest(self) -> tuple[int, int]:
        """(prompt, output) tokens of the longest request of the run."""
        work = self.workload
        whole_list = self.replay or self.mix
        if whole_list is not None:
            return whole_list.longest
        if isinstance(work.asks, Conversations):
            last = prompt_at(work.asks, work.output_tokens, work.asks.turns)
            return last, work.output_tokens
        return work.prompt_tokens, work.output_tokens

    @property
    def endpoint(self) -> EndpointName:
        """Which API is loaded."""
        return cast("EndpointName", self.workload.endpoint)


def read_settings(
    scenario: str, options: Mapping[str, object], kind: AskKind = "levels"
) -> LoadSettings:
    """Validate the options of a scenario; raises UsageError for the first bad one.

    ``options`` maps an option's name without its dashes (``min_requests``) to its text.
    """
    text = {key: "" if value is None else str(value).strip() for key, value in options.items()}
    backends = parse_backends(text["backends"])
    workload, replay = read_workload(scenario, text, kind)
    mix_ask = read_mix(text) if kind == "mix" else None
    return LoadSettings(
        backends=backends,
        default_backends=text["backends"] == DEFAULT_BACKENDS,
        workload=workload,
        slo=parse_slo(text["slo"]),
        max_failure_rate=ratio("--max-failure-rate", text["max_failure_rate"]),
        results_dir=Path(text["results_dir"] or "results"),
        prometheus_url=_prometheus(text["prometheus_url"]),
        dcgm_url=page_url("--dcgm-url", text["dcgm_url"]),
        gpus=_gpus(options.get("gpu"), tuple(b.name for b in backends)),
        model=text["model"] or None,
        model_config=text["model_config"] or None,
        metrics=parse_metrics(text["metrics_host"], text["metrics_port"]),
        api_key=read_api_key(text["api_key"]),
        replay=replay,
        matrix=read_matrix(text, plan_only=bool(options.get("plan_only")))
        if kind == "matrix"
        else None,
        mix_ask=mix_ask,
    )


def read_api_key(text: str) -> str | None:
    """The key, which no message may hold; empty is none; raises UsageError."""
    if not _KEY.fullmatch(text):
        raise UsageError(
            "--api-key (or OPENAI_API_KEY): not a valid key; expected printable ASCII "
            "characters without spaces and line breaks"
        )
    return text or None


def parse_backends(text: str, option: str = "--backends") -> tuple[BackendAddress, ...]:
    """Read ``paged=http://host:8000,other=https://host/path``; raises OptionError."""
    if "@" in text:
        # first, and with nothing before it shown: a password may hold a comma or a slash
        shown = "***@" + without_secrets(text.rpartition("@")[2])
        raise OptionError(option, shown, "URLs without credentials (see --api-key) and without @")
    found: list[BackendAddress] = []
    for part in text.split(","):
        name, equals, url = part.strip().partition("=")
        if not equals:
            expected = f"name=url,... such as {DEFAULT_BACKENDS}"
            raise OptionError(option, without_secrets(part.strip()), expected)
        if not _is_name(name):
            raise OptionError(option, without_secrets(name), _NAME_RULE)
        if name in (backend.name for backend in found):
            raise OptionError(option, name, "each backend's name once")
        found.append(BackendAddress(name, base_url(option, url)))
    return tuple(found)


def _is_name(name: str) -> bool:
    reserved = name == DCGM_TARGET or name.endswith(TARGET_SUFFIX)
    return _NAME.fullmatch(name) is not None and not reserved


def _prometheus(text: str) -> str:
    if text in (PROMETHEUS_AUTO, PROMETHEUS_OFF, ""):
        return text or PROMETHEUS_AUTO
    return credentials_url("--prometheus-url", text)


def parse_slo(text: str, option: str = "--slo") -> Slo:
    """Read ``ttft:500 tpot:50`` (milliseconds); empty asks nothing; raises OptionError."""
    expected = 'limits in milliseconds such as "ttft:500 tpot:50" (names: ttft, tpot, e2e)'
    limits: dict[str, float] = {}
    for part in re.split(r"[\s,]+", text.strip()) if text.strip() else []:
        name, _, value = part.partition(":")
        number = decimal(value)
        if name not in _SLO_NAMES or name in limits or not number:
            raise OptionError(option, text, expected)
        limits[name] = number / 1000
    return Slo(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"), e2e_s=limits.get("e2e"))


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
    number = digits(port)
    if number is None or number > _LAST_PORT:
        raise OptionError(
            "--metrics-port",
            port,
            f"a port up to {_LAST_PORT}, 0 for any, auto for {DEFAULT_PORT} when it is free, none",
        )
    return MetricsAddress(host or DEFAULT_METRICS_HOST, number, named=True)
