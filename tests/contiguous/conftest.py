"""The real tiny model, made once per type."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import LlamaForCausalLM

from servers.contiguous.layout import KvLayout, probe_layout
from tests.contiguous.support import CPU, tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are slower on two threads, and the order of sums stays the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    return tiny_model(torch.float32)


@pytest.fixture(scope="session")
def bf16_model() -> LlamaForCausalLM:
    return tiny_model(torch.bfloat16)


@pytest.fixture(scope="session")
def layout(model: LlamaForCausalLM) -> KvLayout:
    return probe_layout(model, CPU)
