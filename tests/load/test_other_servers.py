"""SGLang, TGI and llama.cpp before the load: recognised, and completed by their own pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import ModelConfigError
from harness.load.kv_theory import stated_or_computed, token_bytes
from harness.load.other_servers import with_facts
from tests.load.test_preflight import prepared
from tests.load.test_run_parts import info
from tests.observe.support import fixture
from tests.support.fake_openai import FakeOpenAi

LLAMA_PROPS = {
    "default_generation_settings": {"id": 0, "n_ctx": 4096, "params": {"n_predict": -1}},
    "total_slots": 4,
    "model_path": "/models/m.gguf",
    "build_info": "b7000-abcdef0",
}
SGLANG_INFO = {
    "version": "0.5.11",
    "context_length": 4096,
    "max_running_requests": 48,
    "max_total_num_tokens": 16384,
}
TGI_INFO = {
    "model_id": "m",
    "max_concurrent_requests": 128,
    "max_input_tokens": 4095,
    "max_total_tokens": 4096,
    "router": "text-generation-router",
    "version": "3.2.1",
}


def models(owner: str | None = None) -> list[dict[str, object]]:
    return [{"id": "m", "owned_by": owner}] if owner else [{"id": "m"}]


@pytest.mark.parametrize(
    ("fake", "kind", "version", "seats"),
    [
        (
            FakeOpenAi(
                models=models("llamacpp"),
                metrics=fixture("llamacpp.txt"),
                pages={"/props": LLAMA_PROPS},
            ),
            *("llamacpp", "b7000-abcdef0", 4),
        ),
        (
            FakeOpenAi(
                models=models("sglang"),
                metrics=fixture("sglang.txt"),
                pages={"/get_server_info": SGLANG_INFO},
            ),
            *("sglang", "0.5.11", 48),
        ),
        (
            FakeOpenAi(models=models(), metrics=fixture("tgi.txt"), pages={"/info": TGI_INFO}),
            *("tgi", "3.2.1", None),
        ),
    ],
    ids=["llamacpp", "sglang", "tgi"],
)
def test_a_server_known_by_its_metrics(
    fake: FakeOpenAi, kind: str, version: str, seats: int | None
) -> None:
    backend = prepared(fake)
    found = backend.info
    assert (found.kind, found.mode, found.engine_version) == (kind, "default", version)
    # TGI's max_concurrent_requests is the router's, from which on it refuses: no seats
    assert (found.max_model_len, found.max_num_seqs) == (4096, seats)
    assert (found.kv_budget_bytes, found.kv_bytes_per_token) == (None, None)
    assert backend.metrics_url == found.url + "/metrics"


@pytest.mark.parametrize(
    ("fake", "kind"),
    [
        (FakeOpenAi(models=models("llamacpp"), pages={"/props": LLAMA_PROPS}), "llamacpp"),
        (FakeOpenAi(models=models("sglang")), "sglang"),
        (FakeOpenAi(models=models(), pages={"/info": TGI_INFO}), "tgi"),
        (FakeOpenAi(models=models("someone"), pages={"/info": {"router": "x"}}), "openai"),
    ],
)
def test_a_server_without_metrics_is_known_by_what_it_says(fake: FakeOpenAi, kind: str) -> None:
    backend = prepared(fake)
    assert backend.info.kind == kind
    assert backend.metrics_url is None


def test_what_a_server_states_itself_stays() -> None:
    stated = info(kind="llamacpp", max_model_len=2048)
    assert with_facts(stated, LLAMA_PROPS).max_model_len == 2048


@pytest.mark.parametrize("page", [{}, {"default_generation_settings": 1, "total_slots": "x"}])
def test_facts_that_make_no_sense_stay_unknown(page: dict[str, object]) -> None:
    found = with_facts(info(kind="llamacpp"), page)
    assert (found.max_model_len, found.max_num_seqs, found.engine_version) == (None, None, None)


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}


def test_kv_bytes_per_token_of_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    computed = token_bytes(str(path))
    # 2 x 4 layers x 2 KV heads x 32 x 2 B
    assert stated_or_computed(info(), computed).kv_bytes_per_token == 1024
    # the server says float32: 4 B
    assert stated_or_computed(info(dtype="float32"), computed).kv_bytes_per_token == 2048
    # what it states itself is never overruled
    assert stated_or_computed(info(kv_bytes_per_token=7), computed).kv_bytes_per_token == 7
    assert stated_or_computed(info(), None).kv_bytes_per_token is None


def test_a_config_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"^--model-config: .*no such file"):
        token_bytes(str(tmp_path / "none.json"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "new", "architectures": ["NewForCausalLM"]}))
    with pytest.raises(ModelConfigError, match=r"--model-config: .* is not known"):
        token_bytes(str(path))
