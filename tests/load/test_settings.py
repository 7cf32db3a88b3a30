from __future__ import annotations

import pytest

from harness.errors import OptionError, UsageError
from harness.load.options import _PROCESS_OPTIONS, _TEXT_OPTIONS, scenario_help
from harness.load.settings import (
    DEFAULT_BACKENDS,
    BackendAddress,
    LoadSettings,
    MetricsAddress,
    parse_backends,
    parse_metrics,
    parse_slo,
    read_settings,
)
from harness.load.workload import parse_min_requests
from harness.workload import Slo

DEFAULTS: dict[str, object] = {
    **{
        name.replace("-", "_"): default
        for name, (default, _, _) in {**_TEXT_OPTIONS, **_PROCESS_OPTIONS}.items()
    },
    "gpu": [],
    "dcgm_url": "http://127.0.0.1:9400/metrics",
    "api_key": "",
}


def settings(**options: object) -> LoadSettings:
    return read_settings("concurrency", {**DEFAULTS, **options})


def test_the_defaults() -> None:
    found = settings()
    assert found.backends == (
        BackendAddress("paged", "http://127.0.0.1:8000"),
        BackendAddress("contiguous", "http://127.0.0.1:8001"),
    )
    assert found.default_backends
    work = found.workload
    assert (work.levels, work.min_requests) == ((1, 4, 16, 32), (100,) * 4)
    assert (work.prompt_tokens, work.output_tokens, work.seed, work.repeats) == (512, 128, 0, 1)
    assert (work.min_level_s, work.max_level_s) == (5, 120)
    assert (work.request_timeout_s, work.idle_timeout_s) == (300, 60)
    assert found.slo == Slo(ttft_s=0.5, tpot_s=0.05)
    assert found.max_failure_rate == 0.01
    assert (found.prometheus_url, found.api_key, found.model) == ("auto", None, None)


def test_values_are_read() -> None:
    found = settings(
        backends="a=https://host/base/v1/,b=http://[::1]:9",
        levels="2,8",
        min_requests="20, 100",
        gpu=["a=GPU-1+GPU-2", "b=GPU-3"],
        api_key="k",
        model="m",
        prometheus_url="http://u:p@127.0.0.1:9090",
        endpoint="chat",
    )
    assert found.backends == (
        BackendAddress("a", "https://host/base"),
        BackendAddress("b", "http://[::1]:9"),
    )
    assert not found.default_backends
    assert found.workload.min_requests == (20, 100)
    assert found.gpus == {"a": ("GPU-1", "GPU-2"), "b": ("GPU-3",)}
    assert (found.api_key, found.model, found.endpoint) == ("k", "m", "chat")


def test_the_api_key_is_not_printed_with_the_settings() -> None:
    assert "secret" not in repr(settings(api_key="secret"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("levels", "0"),
        ("levels", "abc"),
        ("levels", "4,1"),
        ("levels", "1,1"),
        ("levels", ""),
        ("levels", "1" + 400 * "0"),  # more than a float holds
        ("levels", "100001"),
        ("levels", ",".join(str(level) for level in range(1, 1002))),
        ("levels", "\u0663"),
        ("levels", "1_0"),
        ("levels", "+1"),
        ("prompt_tokens", "1_0"),
        ("prompt_tokens", "\u0663"),
        ("output_tokens", "10000001"),
        ("min_requests", "1_0"),
        ("min_requests", "1" + 5000 * "0"),
        ("min_level_seconds", "1_0"),
        ("request_timeout", "\u0663"),
        ("request_timeout", "1" + 400 * "0"),
        ("idle_timeout", "10000001"),
        ("max_failure_rate", "nan"),
        ("slo", "ttft:1_0"),
        ("seed", str(2**63)),
        ("repeats", "99999999999999999999999999"),
        ("metrics_port", "1" + 5000 * "0"),
        ("slo", "tttf:500"),
        ("slo", "ttft=500"),
        ("slo", "ttft:-1"),
        ("slo", "ttft:1 ttft:2"),
        ("slo", "ttft:nan"),
        ("prompt_tokens", "0"),
        ("output_tokens", "1.5"),
        ("min_requests", "1,2"),
        ("min_requests", "0"),
        ("min_level_seconds", "-1"),
        ("max_level_seconds", "0"),
        ("max_level_seconds", "2"),  # less than the shortest, 5
        ("ramp_up_seconds", "-1"),
        ("ramp_up_seconds", "120"),  # as long as the longest level
        ("request_timeout", "inf"),
        ("idle_timeout", "x"),
        ("max_failure_rate", "1.5"),
        ("seed", "-1"),
        ("repeats", "0"),
        ("endpoint", "responses"),
        ("backends", "http://127.0.0.1:8000"),
        ("backends", "paged=127.0.0.1:8000"),
        ("backends", "a=http://h:1,a=http://h:2"),
        ("backends", "a b=http://h:1"),
        ("backends", "../x=http://h:1"),
        ("backends", "dcgm=http://h:1"),
        ("backends", "a=http://h:notaport"),
        ("backends", ""),
        ("prometheus_url", "localhost"),
        ("gpu", ["other=GPU-1"]),
        ("gpu", ["paged="]),
        ("dcgm_url", "x"),
    ],
)
def test_bad_input_is_one_line_that_names_the_option(option: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        settings(**{option: value})
    text = str(caught.value)
    assert text.startswith("--" + option.replace("_", "-"))
    assert "expected" in text
    assert "\n" not in text
    assert caught.value.exit_code == 2


def test_the_largest_numbers() -> None:
    found = settings(levels="1, 100000", repeats="1000", seed=str(2**63 - 1), idle_timeout=".5")
    assert found.workload.levels == (1, 100_000)
    assert (found.workload.repeats, found.workload.idle_timeout_s) == (1000, 0.5)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h/\x01ok", r"'http://h/\x01ok'"),
        ("http://h/a b", "'http://h/a b'"),
        ("http://h/\u202e", r"'http://h/\u202e'"),
        ("http://h/%zz", "'http://h/%zz'"),
        ("http://m\u00fcnchen..de", "'http://m\u00fcnchen..de'"),
        ("http://a..de", "'http://a..de'"),
        ("http://xn--/", "'http://xn--/'"),
        ("http://-a.de", "'http://-a.de'"),
        (f"http://{70 * 'a'}", None),
        (f"http://{'.'.join(60 * ['abcd'])}", None),
        ("http://[::g]:1", "'http://[::g]:1'"),
        ("http://h:0", "'http://h:0'"),
        ("http://h:1_0", "'http://h:1_0'"),
        ("ftp://h", "'ftp://h'"),
        # a query is refused, not dropped, and may hold a secret
        ("http://h/?key=hunter2", "'http://h/?...'"),
        ("http://h/#f", "'http://h/?...'"),
        ("http://h/?", "'http://h/?...'"),
    ],
)
def test_a_url_that_no_client_could_use(url: str, shown: str | None) -> None:
    with pytest.raises(OptionError) as caught:
        settings(backends=f"b={url}")
    text = str(caught.value)
    assert text.startswith(f"--backends: {shown or repr(url)[:20]}")
    assert "hunter2" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "url", ["http://a_b.local.:80", "http://xn--mnchen-3ya.de/p%20q", "http://[fe80::1]:9"]
)
def test_urls_that_can_be_used(url: str) -> None:
    assert parse_backends(f"b={url}") == (BackendAddress("b", url),)


@pytest.mark.parametrize(
    "name", [101 * "a", "", "a b", "../x", "-a", "\u00e4", "a.process", "dcgm"]
)
def test_the_rule_for_a_backends_name(name: str) -> None:
    with pytest.raises(OptionError, match="expected a backend's name of 1 to 100 ASCII letters"):
        parse_backends(f"{name}=http://h:1")


@pytest.mark.parametrize(
    "key",
    [
        "ab\ncd-SECRETKEY",
        "SECRETKEY schl",
        "SECRETKEY\u00fc",
        "SECRETKEY\U0001f511",
        "SECRETKEY\x7f",
    ],
)
def test_a_key_that_no_header_holds_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(
        UsageError, match=r"--api-key \(or OPENAI_API_KEY\): not a valid key"
    ) as caught:
        settings(api_key=key)
    assert "SECRETKEY" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "backends",
    [
        "a=http://u:hunter2,x@host:1",
        "a=http://u:hunter2/x@host:1",
        "a=http:/u:hunter2@host",
        "http://u:hunter2@host",
        "a=http://h,b=http://u:hunter2@h\x01",
    ],
)
def test_a_password_is_in_no_message(backends: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_backends(backends)
    assert "hunter2" not in str(caught.value)


def test_prometheus_may_have_credentials_which_are_in_no_message() -> None:
    with pytest.raises(OptionError, match=r"--prometheus-url: 'http://[*]{3}@h a'") as caught:
        settings(prometheus_url="http://u:hunter2@h a")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(OptionError, match=r"'http://\*\*\*@h/\?\.\.\.'.*without \? and #"):
        settings(prometheus_url="http://u:hunter2@h/?x=1")


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(OptionError) as caught:
        parse_backends("a=http://user:hunter2@host:1")
    assert "hunter2" not in str(caught.value)
    assert "--api-key" in str(caught.value)


def test_slo_forms() -> None:
    assert parse_slo("") == Slo()
    assert parse_slo("e2e:1500, tpot:12.5") == Slo(e2e_s=1.5, tpot_s=0.0125)


def test_min_requests_forms() -> None:
    assert parse_min_requests("7", 3) == (7, 7, 7)
    assert parse_min_requests("1,2,3", 3) == (1, 2, 3)


def test_default_backends_fit_their_own_reader() -> None:
    assert [backend.name for backend in parse_backends(DEFAULT_BACKENDS)] == ["paged", "contiguous"]


def test_the_help_names_every_option_its_default_and_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    text = " ".join(scenario_help().split())
    for name, (default, variable, _) in _TEXT_OPTIONS.items():
        assert variable == "KVKNEE_" + name.upper().replace("-", "_")
        assert f"--{name} " in text
        assert variable in text
        assert default in text
    for more in ("--gpu BACKEND=UUID", "--dcgm-url", "--api-key", "OPENAI_API_KEY"):
        assert more in text


@pytest.mark.parametrize(
    ("text", "port", "named"),
    [("auto", 9646, False), ("", 9646, False), ("9646", 9646, True), ("0", 0, True)],
)
def test_where_the_live_metrics_are_served(text: str, port: int, named: bool) -> None:
    assert parse_metrics("", text) == MetricsAddress("127.0.0.1", port, named)
    assert parse_metrics("::1", text).host == "::1"


def test_no_live_metrics() -> None:
    assert parse_metrics("127.0.0.1", "none").port is None


@pytest.mark.parametrize("text", ["-1", "65536", "9646.0", "http", "\u0663"])
def test_a_metrics_port_that_is_none(text: str) -> None:
    with pytest.raises(OptionError, match=r"--metrics-port: .* expected a port up to 65535"):
        parse_metrics("", text)
