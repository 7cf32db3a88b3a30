"""Our settings as vLLM's flags and environment, for a CPU and for a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.errors import OptionError
from servers.paged.launch import PagedSettings, paged_command, paged_environment

CPU = PagedSettings(
    model="/models/tiny",
    served_model_name="tiny",
    port=8000,
    device="cpu",
    max_model_len=2048,
    kv_budget_bytes=16 * 2**20,
    max_num_seqs=128,
    max_num_batched_tokens=2048,
    block_size=128,
    threads=3,
    local_files_only=True,
)


def test_cpu_command() -> None:
    assert paged_command(CPU, python="python") == (
        "python",
        "-P",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "/models/tiny",
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        "8000",
        "--dtype",
        "bfloat16",
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "128",
        "--max-num-batched-tokens",
        "2048",
        "--block-size",
        "128",
        "--kv-cache-memory-bytes",
        "16777216",
        "--enable-prompt-tokens-details",
        "--enforce-eager",
    )


def test_cpu_environment_binds_no_cores_asks_no_hub_and_sends_no_statistics() -> None:
    base = {"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "4"}
    assert paged_environment(CPU, base) == {
        "PATH": "/bin",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "3",
    }
    assert base["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_gpu_command_with_a_budget_keeps_graphs_and_default_block_and_batch() -> None:
    settings = PagedSettings(
        model="org/name",
        served_model_name="org/name",
        port=8000,
        device="gpu",
        kv_budget_bytes=4 * 2**30,
        gpu_memory_utilization=0.5,
    )
    command = paged_command(settings, python="python")
    assert command[-1] == "--enable-prompt-tokens-details"
    flags = dict(zip(command[4:-1:2], command[5:-1:2], strict=True))
    assert flags == {
        "--model": "org/name",
        "--served-model-name": "org/name",
        "--host": "127.0.0.1",
        "--port": "8000",
        "--dtype": "bfloat16",
        "--kv-cache-memory-bytes": "4294967296",
        "--gpu-memory-utilization": "0.5",
    }


def test_gpu_command_without_a_budget_takes_a_share_of_the_device() -> None:
    settings = replace(CPU, device="gpu", kv_budget_bytes=None, gpu_memory_utilization=0.9)
    command = paged_command(settings)
    assert "--kv-cache-memory-bytes" not in command
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.9"


def test_gpu_environment_leaves_threads_and_hub_alone() -> None:
    settings = replace(CPU, device="gpu", local_files_only=False)
    base = {"PATH": "/bin", "OMP_NUM_THREADS": "8"}
    assert paged_environment(settings, base) == {**base, "VLLM_NO_USAGE_STATS": "1"}


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        # the CPU's default pool is most of the machine's memory: never by accident
        (replace(CPU, kv_budget_bytes=None), "--kv-budget"),
        (replace(CPU, gpu_memory_utilization=0.5), "--gpu-memory-utilization"),
        (replace(CPU, device="gpu", gpu_memory_utilization=1.5), "--gpu-memory-utilization"),
        (replace(CPU, device="gpu", gpu_memory_utilization=0.0), "--gpu-memory-utilization"),
    ],
)
def test_settings_that_cannot_be_name_their_option(settings: PagedSettings, option: str) -> None:
    with pytest.raises(OptionError) as caught:
        paged_command(settings)
    assert caught.value.option == option
