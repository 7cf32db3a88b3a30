"""The options of closed loops whose requests differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import OptionError, UsageError
from harness.load.ask_settings import MixAsk, parse_shares, smallest_context
from harness.load.fit_mix import fitted
from harness.load.options import option_values, scenario_help, text_options
from harness.load.settings import AskKind, LoadSettings, read_settings
from harness.plan.traces import TraceRow
from harness.workload import Conversations, LengthMix, SharedPrefix
from tests.support.fake_openai import FakeOpenAi, serve

REST = {
    **{"gpu": [], "dcgm_url": "http://127.0.0.1:9400/metrics", "api_key": ""},
    **{"metrics_host": "", "metrics_port": "none"},
}


def settings(kind: AskKind, **options: object) -> LoadSettings:
    defaults = {
        name.replace("-", "_"): default for name, (default, *_) in text_options(kind).items()
    }
    return read_settings("test", {**REST, **defaults, **options}, kind)


def test_a_shared_prefix_is_part_of_the_prompt() -> None:
    found = settings("prefix")
    assert found.workload.asks == SharedPrefix(prefix_tokens=512, reuse=(0.0, 0.9))
    assert (found.workload.prompt_tokens, found.workload.output_tokens) == (512 + 64, 64)
    assert found.longest == (576, 64)
    assert found.workload.shares_prefixes
    assert found.workload.loop == "closed"


def test_conversations_are_named_by_their_middle_turn() -> None:
    """256 system; turn 3 of 5 has 3 x 64 of the user and 2 x 64 of the server before it; the
    last one 5 x 64 and 4 x 64.
    """
    found = settings("chat")
    assert found.workload.asks == Conversations(
        system_tokens=256, turns=5, user_tokens=64, think_s=1.0
    )
    assert found.workload.prompt_tokens == 256 + 3 * 64 + 2 * 64
    assert found.longest == (256 + 5 * 64 + 4 * 64, 64)
    assert found.workload.shares_prefixes


def test_drawn_lengths_are_clipped_to_the_smallest_server() -> None:
    small, large = FakeOpenAi(models=[{"id": "m", "max_model_len": 300}]), FakeOpenAi()
    with serve(small) as a, serve(large) as b:
        found = fitted(settings("mix", backends=f"a={a.url},b={b.url}", length_count="50"))
    said = found.workload.asks
    assert isinstance(said, LengthMix)
    assert (said.context_tokens, said.requests, said.over_length) == (300, 50, "clip")
    assert said.source == "lognormal:192,0.9,96,0.7"
    assert found.mix is not None
    totals = [row.prompt_tokens + row.output_tokens for row in found.mix.rows]
    assert max(totals) == 300 == sum(found.longest)
    assert said.shortened == sum(total == 300 for total in totals)
    assert found.workload.prompt_tokens == found.mix.usual[0]
    assert not found.workload.shares_prefixes


def test_a_trace_is_scaled_to_the_context(tmp_path: Path) -> None:
    """The longest has 400 + 100 tokens, the context 250: half of everything."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,400,100\n1,60,20\n2,9,9\n")
    found = fitted(settings("mix", trace=str(path), context="250", length_count="2"))
    assert found.mix is not None
    assert [(r.prompt_tokens, r.output_tokens) for r in found.mix.rows] == [(200, 50), (30, 10)]
    said = found.workload.asks
    assert isinstance(said, LengthMix)
    assert (said.source, said.factor, len(said.sha256 or "")) == ("trace.csv", 0.5, 64)


def test_a_server_that_states_no_context_needs_one() -> None:
    asked = MixAsk((TraceRow(0.0, 1, 1),), "x", None, "clip", None)
    with pytest.raises(UsageError, match="--context: none given, and b does not state"):
        smallest_context(asked, [("a", 5), ("b", None)])
    assert smallest_context(asked, [("a", 5), ("c", 3)]) == 3


def test_skipping_may_leave_nothing() -> None:
    asked = MixAsk((TraceRow(0.0, 9, 9),), "x", None, "skip", 10)
    with pytest.raises(UsageError, match="--over-length: skip leaves none of 1 requests within 10"):
        asked.fitted(10)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("mix", {"context": "1"}, "--context: '1' is not valid"),
        ("mix", {"length_count": "0"}, "--length-count: '0' is not valid"),
        ("mix", {"lengths": "normal:1"}, "--lengths: 'normal:1' is not valid"),
        ("mix", {"over_length": "cut"}, "--over-length: 'cut' is not valid"),
        ("mix", {"endpoint": "chat"}, "--endpoint: 'chat' is not valid"),
        ("mix", {"trace": "/nowhere.csv"}, "--trace: /nowhere.csv cannot be read"),
        ("prefix", {"prefix_tokens": "0"}, "--prefix-tokens: '0' is not valid"),
        ("prefix", {"reuse": "0.9,0.5"}, "--reuse: '0.9,0.5' is not valid"),
        ("prefix", {"endpoint": "chat"}, "--endpoint: 'chat' is not valid"),
        ("chat", {"turns": "0"}, "--turns: '0' is not valid"),
        ("chat", {"think_time": "-1"}, "--think-time: '-1' is not valid"),
        ("chat", {"system_tokens": "x"}, "--system-tokens: 'x' is not valid"),
        ("chat", {"endpoint": "chat"}, "--endpoint: 'chat' is not valid"),
    ],
)
def test_bad_input_names_the_option(kind: AskKind, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(kind, **options)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("text", ["", "x", "2", "0,0", "0.5,", "1e-1"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--reuse: .* expected rising shares between 0 and 1"):
        parse_shares(text)


@pytest.mark.parametrize("kind", ["mix", "prefix", "chat"])
def test_the_help_names_every_option(kind: AskKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    text = " ".join(scenario_help(kind).split())
    for name, (default, variable, _) in text_options(kind).items():
        assert variable == "KVKNEE_" + name.upper().replace("-", "_")
        assert f"--{name} " in text
        assert default in text


def test_a_mix_states_its_own_lengths() -> None:
    assert not {"prompt-tokens", "output-tokens"} & set(text_options("mix"))
    assert "prompt-tokens" not in text_options("chat")

    # the values that Locust's namespace holds are all asked for
    class Everything:
        def __getattr__(self, name: str) -> str:
            return name

    assert option_values(Everything(), "mix")["over_length"] == "over_length"
