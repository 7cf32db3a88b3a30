"""What a step allocates and frees again, on a faked CUDA allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from servers.contiguous.metrics import ServerMetrics
from servers.contiguous.snapshot import EngineSnapshot
from servers.contiguous.temporaries import WINDOW_S, StepPeak, StepPeaks, step_peaks
from tests.contiguous.support import CPU, FakeClock


class Allocator:
    """torch's counters: what is allocated now, and the most since the last reset."""

    def __init__(self, current: int) -> None:
        self.current = self.peak = current

    def change(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)

    def reset(self) -> None:
        self.peak = self.current

    def stats(self) -> dict[str, int]:
        return {
            "allocated_bytes.all.current": self.current,
            "allocated_bytes.all.peak": self.peak,
        }


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def step(peaks: StepPeaks, allocator: Allocator, *changes: int) -> None:
    peaks.begin()
    for change in changes:
        allocator.change(change)
    peaks.end()


def test_f124_peak_and_steady_are_told_apart(clock: FakeClock) -> None:
    """1,000 B steady. A step stores 10 B of KV that stay, and a copy of 300 B that goes."""
    allocator = Allocator(1000)
    peaks = StepPeaks(clock, allocator.stats, allocator.reset)
    step(peaks, allocator, 10, 300, -300)
    assert peaks.latest() == StepPeak(temporary_bytes=300, allocated_bytes=1310)


def test_kv_that_a_step_frees_is_no_temporary(clock: FakeClock) -> None:
    """200 B go with a request that leaves, while 50 B come and go."""
    allocator = Allocator(1000)
    peaks = StepPeaks(clock, allocator.stats, allocator.reset)
    step(peaks, allocator, 50, -50, -200)
    assert peaks.latest() == StepPeak(50, 1050)


def test_d100_the_peak_is_reset_at_every_step(clock: FakeClock) -> None:
    """A prefill of 5,000 B must not be shown for the decode steps that follow it."""
    allocator = Allocator(1000)
    peaks = StepPeaks(clock, allocator.stats, allocator.reset)
    step(peaks, allocator, 5000, -5000)
    clock.now_s += 1
    step(peaks, allocator, 20, -20)
    assert peaks.latest() == StepPeak(5000, 6000), "the most of the last seconds"
    clock.now_s += WINDOW_S - 0.5
    assert peaks.latest() == StepPeak(20, 1020)
    clock.now_s += 1
    assert peaks.latest() is None, "no step ended in the last seconds"


def test_a_cpu_has_no_such_count(clock: FakeClock) -> None:
    assert step_peaks(CPU, clock) is None


def snapshot(peak: StepPeak | None) -> EngineSnapshot:
    return EngineSnapshot(0, 0, 0, 0, 0, 0, step_peak=peak)


def gauge(peak: StepPeak | None, name: str, *, cuda: bool) -> Any:
    metrics = ServerMetrics("m")
    metrics.add_gauges(lambda: snapshot(peak), {"mode": "static"}, cuda=cuda)
    return metrics.registry.get_sample_value(f"contiguous_{name}", {"model": "m"})


def test_the_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    """D100: allocated, reserved and the peak are three figures."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 10)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 12)
    peak = StepPeak(7, 21)
    assert gauge(peak, "temporary_peak_bytes", cuda=True) == 7
    assert gauge(peak, "cuda_max_allocated_bytes", cuda=True) == 21
    assert gauge(None, "cuda_max_allocated_bytes", cuda=True) == 12
    assert gauge(None, "temporary_peak_bytes", cuda=True) is None
    assert gauge(None, "temporary_peak_bytes", cuda=False) is None
