"""From the options of `kvknee up` to a plan, and from a plan to commands."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from harness.errors import OptionError
from harness.stack import launches
from harness.stack import options as options_module
from harness.stack.launches import plan_launches
from harness.stack.models import ModelFacts, choose_model
from harness.stack.options import UpOptions, plan_stack, require_fit
from harness.stack.process import Started

TINY = ModelFacts(kv_bytes_per_token=1024, max_positions=16_384)


def test_what_few_ask_for_is_part_of_the_settings_where_it_was_asked(tmp_path: Path) -> None:
    asked = UpOptions(home=tmp_path, cache="quantized", kv_bits=8)
    assert plan_stack(asked, gpu_present=False).settings()["kv_bits"] == 8
    plain = plan_stack(UpOptions(home=tmp_path), gpu_present=False).settings()
    assert not {"kv_bits", "sliding_window", "compile"} & set(plain)


def test_defaults_of_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module, "available_cores", lambda: 4)
    plan = plan_stack(UpOptions(home=tmp_path), gpu_present=False)
    assert plan.settings() == {
        "model": "tiny",
        "backends": "paged,contiguous",
        "kv_budget": "16MiB",
        "max_model_len": 2048,
        "max_num_seqs": 128,
        "dtype": "bfloat16",
        "cache": "static",
        "reserve": "max",
        "batching": "continuous",
        "batch_size": None,
        "device": "cpu",
        "gpu_memory_utilization": None,
        "threads": 3,
        "paged_port": 8000,
        "contiguous_port": 8001,
    }


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_a_core_is_left_to_the_client(
    cores: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "available_cores", lambda: cores)
    assert plan_stack(UpOptions(home=tmp_path), False).threads == threads


@pytest.mark.parametrize(
    ("model", "budget"), [("tiny", 2**24), ("smollm2", 2**28), ("org/name", 2**30)]
)
def test_the_default_budget_depends_on_the_model(model: str, budget: int, tmp_path: Path) -> None:
    assert plan_stack(UpOptions(home=tmp_path, model=model), False).kv_budget_bytes == budget


def test_one_backend_has_one_port_in_its_settings(tmp_path: Path) -> None:
    plan = plan_stack(UpOptions(home=tmp_path, backends="contiguous"), False)
    assert plan.settings()["contiguous_port"] == 8001
    assert "paged_port" not in plan.settings()


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"backends": "paged,pagd"}, "--backends"),
        ({"backends": ""}, "--backends"),
        ({"backends": "paged,paged"}, "--backends"),
        ({"contiguous_port": 8000}, "--contiguous-port"),
        ({"kv_budget": "16 bananas"}, "--kv-budget"),
        ({"model": "no-such-model"}, "--model"),
        ({"gpu_memory_utilization": 0.5}, "--gpu-memory-utilization"),
        ({"cache": "dynamic", "reserve": "exact"}, "--reserve"),
        ({"batch_size": 4}, "--batch-size"),
        ({"batching": "static", "batch_size": 129}, "--batch-size"),
        ({"kv_bits": 4}, "--kv-bits"),
        ({"cache": "quantized", "sliding_window": 64}, "--sliding-window"),
        ({"cache": "dynamic", "compile": True}, "--compile"),
        ({"reserve": "pow2", "compile": True}, "--compile"),
        ({"cache": "off", "batching": "static"}, "--batching"),
        ({"compile": True, "batching": "static"}, "--batching"),
    ],
)
def test_bad_options_are_named(changes: dict[str, object], option: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        plan_stack(replace(UpOptions(home=tmp_path), **changes), gpu_present=False)
    assert caught.value.option == option


def test_a_budget_below_one_request_says_what_one_needs(tmp_path: Path) -> None:
    plan = plan_stack(UpOptions(home=tmp_path, kv_budget="2MiB"), False)
    # 2,048 tokens x 1,024 B = 2 MiB: fits exactly
    require_fit(plan, TINY)
    with pytest.raises(OptionError, match=r"at least 2MiB: one request of --max-model-len 2048"):
        require_fit(replace(plan, kv_budget_bytes=2**21 - 1), TINY)
    require_fit(replace(plan, kv_budget_bytes=1), ModelFacts(None, None))


def test_a_context_beyond_the_model_is_refused(tmp_path: Path) -> None:
    plan = plan_stack(UpOptions(home=tmp_path, max_model_len=16_385, kv_budget="1GiB"), False)
    with pytest.raises(OptionError, match="at most 16384, the model's own limit"):
        require_fit(plan, TINY)


def flags_of(command: tuple[str, ...]) -> dict[str, str]:
    alone = ("--enforce-eager", "--enable-prompt-tokens-details")
    given = [part for part in command[4:] if part not in alone]
    return dict(zip(given[::2], given[1::2], strict=True))


def test_both_servers_get_the_same_model_budget_and_length(tmp_path: Path) -> None:
    plan = plan_stack(UpOptions(home=tmp_path, threads=1, batching="none"), False)
    paged, contiguous = plan_launches(plan, {"PATH": "/bin"})
    one, other = flags_of(paged.command), flags_of(contiguous.command)
    for flag in ("--model", "--served-model-name", "--dtype", "--max-model-len", "--max-num-seqs"):
        assert one[flag] == other[flag]
    assert one["--kv-cache-memory-bytes"] == other["--kv-budget"] == "16777216"
    assert (one["--host"], other["--host"]) == ("127.0.0.1", "127.0.0.1")
    assert one["--block-size"] == "128"
    assert contiguous.command[:4] == (sys.executable, "-P", "-m", "servers.contiguous")
    assert (other["--device"], other["--threads"], other["--batching"]) == ("cpu", "1", "none")
    # asked for by name, so that the record states them
    assert (other["--prefill-chunk"], contiguous.prefill_chunk) == ("512", 512)
    assert (paged.threads, contiguous.threads, paged.prefill_chunk) == (1, 1, None)
    assert contiguous.environment == {"PATH": "/bin", "HF_HUB_OFFLINE": "1"}
    assert (paged.mode, contiguous.mode) == ("paged", "static/none")


def test_reservation_and_batches_are_passed_on(tmp_path: Path) -> None:
    options = UpOptions(home=tmp_path, reserve="pow2", batching="static", batch_size=16)
    _, contiguous = plan_launches(plan_stack(options, False), {})
    flags = flags_of(contiguous.command)
    assert (flags["--reserve"], flags["--batching"], flags["--batch-size"]) == (
        "pow2",
        "static",
        "16",
    )
    assert contiguous.mode == "static/pow2/batch"


def test_gpu_branch_leaves_blocks_batch_and_threads_to_the_engines(tmp_path: Path) -> None:
    plan = plan_stack(
        UpOptions(home=tmp_path, model="org/name", gpu_memory_utilization=0.4), gpu_present=True
    )
    assert plan.device == "gpu"
    paged, contiguous = plan_launches(plan, {})
    one, other = flags_of(paged.command), flags_of(contiguous.command)
    assert "--enforce-eager" not in paged.command
    assert "--block-size" not in one
    assert "--max-num-batched-tokens" not in one
    assert one["--gpu-memory-utilization"] == "0.4"
    assert other["--device"] == "cuda"
    assert "--threads" not in other
    assert (paged.threads, contiguous.threads) == (None, None)
    # a hub id: the engines may ask the hub
    assert "HF_HUB_OFFLINE" not in {**paged.environment, **contiguous.environment}


def test_the_record_states_what_figures_depend_on(tmp_path: Path) -> None:
    """Under the names that the contiguous server's /version and BackendInfo use."""
    plan = plan_stack(UpOptions(home=tmp_path, threads=3), False)
    paged, contiguous = (
        launch.record(plan, 1024, Started(pid=1, started_s=2.0))
        for launch in plan_launches(plan, {})
    )
    libraries = f"torch {version('torch')}, transformers {version('transformers')}"
    for record in (paged, contiguous):
        assert (record.device, record.threads, record.libraries) == ("cpu", 3, libraries)
        assert record.kv_bytes_per_token == 1024
    assert (paged.prefill_chunk, contiguous.prefill_chunk) == (None, 512)


def test_libraries_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> str:
        if name == "torch":
            return "2.13.0+cpu"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(launches.metadata, "version", found)
    assert launches.libraries() == "torch 2.13.0+cpu"


def test_more_sequences_than_the_token_budget_raise_it(tmp_path: Path) -> None:
    plan = plan_stack(UpOptions(home=tmp_path, max_num_seqs=4096), False)
    paged, _ = plan_launches(plan, {})
    assert flags_of(paged.command)["--max-num-batched-tokens"] == "4096"


def test_models_by_name_folder_and_hub_id(tmp_path: Path) -> None:
    tiny = choose_model("tiny", tmp_path)
    assert (tiny.path, tiny.served_name) == (str(tmp_path / "models" / "tiny"), "tiny")
    folder = tmp_path / "my-model"
    folder.mkdir()
    with pytest.raises(OptionError, match=r"a folder with a config\.json"):
        choose_model(str(folder), tmp_path)
    (folder / "config.json").write_text(json.dumps({}))
    mine = choose_model(str(folder), tmp_path)
    assert (mine.path, mine.served_name, mine.local) == (str(folder), "my-model", True)
    hub = choose_model("HuggingFaceTB/SmolLM2-135M", tmp_path)
    assert (hub.path, hub.local) == ("HuggingFaceTB/SmolLM2-135M", False)


@pytest.mark.parametrize("text", ["tinny", "/no/such/folder", "./gone/away", "a/b/c", ""])
def test_what_is_no_model_says_what_would_be(text: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="tiny, smollm2, a model's folder, or a hub id") as caught:
        choose_model(text, tmp_path)
    assert ("did you mean tiny?" in str(caught.value)) == (text == "tinny")
