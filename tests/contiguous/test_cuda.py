"""GPU-only branches, on a faked ``torch.cuda``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.errors import OptionError
from servers.contiguous import service
from servers.contiguous.loading import choose_device
from servers.contiguous.metrics import ServerMetrics
from servers.contiguous.service import build_service, kv_budget_bytes
from servers.contiguous.settings import Settings
from servers.contiguous.snapshot import EngineSnapshot
from tests.contiguous.support import Bench, FakeModel, loaded_model

GIB = 2**30
CUDA: Any = SimpleNamespace(type="cuda")


def budget(monkeypatch: pytest.MonkeyPatch, free: int, total: int) -> int:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, total))
    return kv_budget_bytes(Settings("m", "m"), CUDA)


def test_default_budget_is_what_is_free_less_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """An 80 GiB card with 60 free: 60 - 8 = 52 GiB."""
    assert budget(monkeypatch, 60 * GIB, 80 * GIB) == 52 * GIB


def test_the_reserve_is_at_least_a_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """An 8 GiB card with 5 free: 5 - 1 = 4 GiB."""
    assert budget(monkeypatch, 5 * GIB, 8 * GIB) == 4 * GIB


def test_a_full_gpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="only 512 MiB of the GPU's 8 GiB are free"):
        budget(monkeypatch, GIB // 2, 8 * GIB)


def test_off_serves_on_a_full_gpu(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no KV, so how much is free is never asked."""
    monkeypatch.setattr(service, "kv_budget_bytes", lambda *_: 1 / 0)
    info = build_service(loaded_model(model), Settings("tiny", "tiny", cache="off")).info
    assert (info["cache"], info["kv_budget_bytes"]) == ("off", None)


def test_a_given_budget_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: 1 / 0)
    assert kv_budget_bytes(Settings("m", "m", kv_budget_bytes=5), CUDA) == 5


def test_auto_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    assert choose_device("cuda").type == "cuda"
    assert choose_device("cpu").type == "cpu"


def test_memory_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 10)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 20)
    metrics = ServerMetrics("m")
    metrics.add_gauges(lambda: EngineSnapshot(0, 0, 0, 0, 0, 0), {"mode": "static"}, cuda=True)
    for name, value in (("allocated", 10), ("reserved", 30), ("max_allocated", 20)):
        sample = metrics.registry.get_sample_value(f"contiguous_cuda_{name}_bytes", {"model": "m"})
        assert sample == value


def test_out_of_memory_empties_the_allocators_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the failed requests' tensors are gone, so that their blocks can go back."""
    held: list[int] = []

    def before(number: int, batch: int) -> None:
        if number == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    bench = Bench(FakeModel(before), FakeModel.LAYOUT, "dynamic")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append(bench.cache.used_bytes()))
    _, out = bench.submit([1], 5)
    bench.run()
    assert out.error is not None
    assert "CUDA out of memory" in out.error
    assert held == [0]
