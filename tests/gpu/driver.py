"""The server's engine, stepped by hand, without HTTP, Prometheus or a tokenizer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from servers.contiguous.admission import Admission, AdmissionPolicy, DynamicPolicy, StaticPolicy
from servers.contiguous.batch import Runner
from servers.contiguous.cache_dynamic import DynamicBatchCache
from servers.contiguous.cache_static import StaticBatchCache
from servers.contiguous.engine import Engine
from servers.contiguous.layout import KvLayout
from servers.contiguous.modes import mode_policy, mode_runner, windowed_layout
from servers.contiguous.runner import ModelRunner
from servers.contiguous.sampling import Sampler, SamplingParams
from servers.contiguous.sequence import ErrorEvent, Event, Sequence
from servers.contiguous.settings import Settings
from servers.contiguous.snapshot import EngineSnapshot
from servers.contiguous.temporaries import StepPeak, StepPeaks, step_peaks

#: KV bytes that admission may promise: what fits is decided by memory alone here
BUDGET_BYTES = 2**50


class CellLike(Protocol):
    """The part of a cell that decides on the engine."""

    mode: str
    prompt_tokens: int
    batch: int


class SweepLike(Protocol):
    """The part of a sweep that does."""

    max_model_len: int
    window: int


class _Unmeasured:
    """Stands for all counters and histograms: the engine's figures are read from events here."""

    def __getattr__(self, name: str) -> _Unmeasured:
        return self

    def inc(self, amount: float = 1) -> None:
        """Not counted."""

    def observe(self, amount: float) -> None:
        """Not counted."""

    def ended(self, outcome: str) -> None:
        """Not counted."""


class _Silent:
    """Random weights say nothing that is worth reading."""

    def add(self, token: int) -> str:
        """No text."""
        return ""

    def flush(self) -> str:
        """No text."""
        return ""


class Driver:
    """Submits equal requests and steps until they have ended."""

    def __init__(
        self, runner: Runner, policy: AdmissionPolicy, device: torch.device, vocab: int, chunk: int
    ) -> None:
        self._device = device
        self._vocab = vocab
        self._peaks = step_peaks(device, time.perf_counter)
        self._most: StepPeak | None = None
        self.engine = Engine(
            runner,
            Admission(policy, 1 << 20),
            _Unmeasured(),  # type: ignore[arg-type]
            deliver=_deliver,
            clock=time.perf_counter,
            prefill_chunk=chunk,
            peaks=self._peaks,
        )
        self._requests: list[Sequence] = []

    def submit(self, count: int, prompt_tokens: int, output_tokens: int) -> None:
        """Seeded prompts, greedy answers that nothing ends early."""
        params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        generator = torch.Generator().manual_seed(1)
        for _ in range(count):
            ids = torch.randint(0, self._vocab, (prompt_tokens,), generator=generator).tolist()
            sequence = Sequence(
                prompt_ids=ids,
                params=params,
                sampler=Sampler(params, frozenset(), self._device),
                detokenizer=_Silent(),
                eos_ids=frozenset(),
                sink=_raise_errors,
            )
            self.engine.submit(sequence)
            self._requests.append(sequence)

    def step(self) -> None:
        """One round; RuntimeError when there was nothing to do, or a request failed."""
        if not self.engine.step():
            raise RuntimeError("the engine has nothing to do, and requests have not ended")
        self._note(self._peaks)

    def finish(self) -> None:
        """Until all have ended."""
        while self.engine.step():
            pass

    def generated(self) -> Iterator[int]:
        """Tokens of each request so far."""
        return (sequence.generated for sequence in self._requests)

    def snapshot(self) -> EngineSnapshot:
        """The engine's gauges."""
        return self.engine.snapshot()

    def peak(self) -> StepPeak | None:
        """The most of all steps so far; None on a CPU."""
        return self._most

    def times(self) -> tuple[float, float | None]:
        """Means over the requests: TTFT, and TPOT where an answer has two tokens."""
        first = [(s.first_token_s or 0.0) - (s.submitted_s or 0.0) for s in self._requests]
        gaps = [
            ((s.last_token_s or 0.0) - (s.first_token_s or 0.0)) / (s.generated - 1)
            for s in self._requests
            if s.generated > 1
        ]
        return sum(first) / len(first), sum(gaps) / len(gaps) if gaps else None

    def _note(self, peaks: StepPeaks | None) -> None:
        latest = None if peaks is None else peaks.latest()
        if latest is None:
            return
        most = self._most or latest
        self._most = StepPeak(
            max(most.temporary_bytes, latest.temporary_bytes),
            max(most.allocated_bytes, latest.allocated_bytes),
        )


def make_driver(model: Any, layout: KvLayout, cell: CellLike, sweep: SweepLike) -> Driver:
    """The engine of a cell; raises UsageError for what the mode cannot do here."""
    name, _, bits = cell.mode.partition("-")
    settings = Settings(
        "random",
        "random",
        cache=name,  # type: ignore[arg-type]
        kv_bits=int(bits) if bits else None,  # type: ignore[arg-type]
        sliding_window=sweep.window if name == "sliding" else None,
    )
    layout = windowed_layout(settings, layout)
    device = layout.device
    policy = mode_policy(settings, layout, BUDGET_BYTES)
    runner = mode_runner(settings, model, layout, device)
    if policy is None or runner is None:
        policy, runner = _plain(model, layout, cell, sweep.max_model_len)
    # all prompts are prefilled in the first step, so that all requests decode in the same ones
    chunk = cell.batch * cell.prompt_tokens
    return Driver(runner, policy, device, int(model.config.vocab_size), chunk)


def _plain(
    model: Any, layout: KvLayout, cell: CellLike, max_model_len: int
) -> tuple[AdmissionPolicy, Runner]:
    per_token = layout.bytes_per_token
    if cell.mode == "dynamic":
        cache: Any = DynamicBatchCache(layout)
        return DynamicPolicy(BUDGET_BYTES, per_token, 1 << 20), ModelRunner(
            model, cache, layout.device
        )
    cache = StaticBatchCache(layout, cell.batch, max_model_len)
    policy = StaticPolicy(cell.batch, cell.batch, max_model_len * per_token)
    return policy, ModelRunner(model, cache, layout.device)


class GpuMemory:
    """torch's and the device's counters; None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None

    def empty_cache(self) -> None:
        """Give back what no tensor uses."""
        if self._device is not None:
            torch.cuda.empty_cache()

    def allocated(self) -> int | None:
        """Bytes of tensors."""
        return None if self._device is None else torch.cuda.memory_allocated(self._device)

    def reserved(self) -> int | None:
        """Bytes that torch has taken from the device."""
        return None if self._device is None else torch.cuda.memory_reserved(self._device)

    def device_used(self) -> int | None:
        """Bytes that anybody has taken from the device."""
        if self._device is None:
            return None
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)


def _deliver(batch: list[tuple[Sequence, Event]]) -> None:
    for sequence, event in batch:
        sequence.sink(event)


def _raise_errors(event: Event) -> None:
    if isinstance(event, ErrorEvent):
        raise RuntimeError(event.message)
