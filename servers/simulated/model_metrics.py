"""The metrics of a modelled engine, under the names of the server that it stands for.

The paged layout has vLLM's names and labels, the contiguous one those of our own server.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from servers.simulated.core import EngineCore, Sequence
from servers.simulated.model import EngineModel

_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0)


class ModelMetrics(Protocol):
    """What a modelled engine reports while it runs."""

    def queued(self, seconds: float) -> None:
        """A request has begun to run after so long."""
        ...

    def first_token(self, seconds: float) -> None:
        """Its first token came so long after its arrival."""
        ...

    def gap(self, seconds: float) -> None:
        """Another token came so long after the one before."""
        ...

    def ended(self, reason: str) -> None:
        """A request is over: ``length`` or ``abort``."""
        ...

    def stepped(self, served: Seq[Sequence], preemptions: int) -> None:
        """A step is over: who got a token, and all preemptions so far."""
        ...

    def page(self, core: EngineCore) -> str:
        """The whole page."""
        ...

    def version(self) -> Mapping[str, object]:
        """What ``/version`` says."""
        ...


def metrics_for(model: EngineModel, name: str) -> ModelMetrics:
    """The metrics of a model's layout."""
    return PagedMetrics(model, name) if model.layout == "paged" else SlotMetrics(model, name)


class _Common:
    """Counters and histograms that both have, under a prefix and fixed labels."""

    def __init__(self, prefix: str, labels: Mapping[str, str], names: tuple[str, str, str]) -> None:
        """``names``: of the time in the queue, of the running and of the waiting requests."""
        self._registry = CollectorRegistry()
        self._prefix, self._labels = prefix, dict(labels)
        self._queue = self._histogram(names[0])
        self._ttft = self._histogram("time_to_first_token_seconds")
        self._gap = self._histogram("inter_token_latency_seconds")
        self._prompt = self._counter("prompt_tokens")
        self._generated = self._counter("generation_tokens")
        self._running = self._gauge(names[1])
        self._waiting = self._gauge(names[2])

    def queued(self, seconds: float) -> None:
        """A request has begun to run after so long."""
        self._queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """Its first token came so long after its arrival."""
        self._ttft.observe(seconds)

    def gap(self, seconds: float) -> None:
        """Another token came so long after the one before."""
        self._gap.observe(seconds)

    def stepped(self, served: Seq[Sequence], preemptions: int) -> None:
        """A step is over."""
        self._generated.inc(len(served))
        self._prompt.inc(sum(s.prompt_tokens for s in served if s.generated == 1))

    def _page(self, core: EngineCore) -> str:
        self._running.set(len(core.running))
        self._waiting.set(len(core.waiting))
        return generate_latest(self._registry).decode()

    def _gauge(self, name: str) -> Gauge:
        made = Gauge(self._prefix + name, name, tuple(self._labels), registry=self._registry)
        return made.labels(**self._labels)

    def _counter(self, name: str) -> Counter:
        made = Counter(self._prefix + name, name, tuple(self._labels), registry=self._registry)
        return made.labels(**self._labels)

    def _histogram(self, name: str) -> Histogram:
        made = Histogram(
            self._prefix + name,
            name,
            tuple(self._labels),
            registry=self._registry,
            buckets=_BUCKETS,
        )
        return made.labels(**self._labels)

    def _reasons(self, name: str, label: str, reasons: Seq[str]) -> dict[str, Counter]:
        """One counter per reason, all stated from the start."""
        labels = (*self._labels, label)
        made = Counter(self._prefix + name, name, labels, registry=self._registry)
        return {reason: made.labels(**self._labels, **{label: reason}) for reason in reasons}

    def _info(self, name: str, labels: Mapping[str, object]) -> None:
        """A gauge of 1 whose labels say what never changes."""
        text = {key: str(value) for key, value in labels.items()}
        Gauge(self._prefix + name, name, tuple(text), registry=self._registry).labels(**text).set(1)


class PagedMetrics(_Common):
    """vLLM's page."""

    def __init__(self, model: EngineModel, name: str) -> None:
        super().__init__(
            "vllm:",
            {"engine": "0", "model_name": name},
            ("request_queue_time_seconds", "num_requests_running", "num_requests_waiting"),
        )
        self._model = model
        self._usage = self._gauge("kv_cache_usage_perc")
        self._preemptions = self._counter("num_preemptions")
        self._queries = self._counter("prefix_cache_queries")
        self._counter("prefix_cache_hits")
        self._ends = self._reasons(
            "request_success", "finished_reason", ("stop", "length", "abort", "error")
        )
        self._preempted = 0
        self._info(
            "cache_config_info",
            {
                "block_size": model.block_size,
                "cache_dtype": "auto",
                "enable_prefix_caching": False,
                "engine": "0",
                "kv_cache_memory_bytes": model.pool_bytes,
                "kv_cache_size_tokens": model.num_blocks * model.block_size,
                "num_gpu_blocks": model.num_blocks,
            },
        )

    def ended(self, reason: str) -> None:
        """A request is over."""
        self._ends[reason].inc()

    def stepped(self, served: Seq[Sequence], preemptions: int) -> None:
        """A step is over."""
        super().stepped(served, preemptions)
        self._queries.inc(sum(s.prompt_tokens for s in served if s.generated == 1))
        self._preemptions.inc(preemptions - self._preempted)
        self._preempted = preemptions

    def page(self, core: EngineCore) -> str:
        """The whole page; the null block counts neither as used nor as there."""
        self._usage.set(1.0 - core.free_blocks / self._model.usable_blocks)
        return self._page(core)

    def version(self) -> Mapping[str, object]:
        """vLLM states its version alone; the mode says that this is none."""
        return {"mode": "modelled", "layout": "paged"}


class SlotMetrics(_Common):
    """The contiguous server's page, with static slots."""

    def __init__(self, model: EngineModel, name: str) -> None:
        super().__init__(
            "contiguous_",
            {"model": name},
            ("queue_seconds", "requests_running", "requests_waiting"),
        )
        self._model = model
        self._for_kv = self._gauge("requests_waiting_for_kv")
        self._gauge("slots").set(model.seats)
        self._gauge("kv_budget_bytes").set(model.kv_budget_bytes)
        self._gauge("kv_reserved_bytes").set(model.seats * self._slot_bytes)
        self._used = self._gauge("kv_used_bytes")
        self._held = self._gauge("kv_tokens_held")
        self._process = psutil.Process()
        self._rss = self._gauge("process_resident_memory_bytes")
        self._ends = self._reasons("requests", "outcome", ("stop", "length", "cancelled", "error"))
        self._info("cache_info", {"model": name, **self.version()})

    def ended(self, reason: str) -> None:
        """A request is over."""
        self._ends["length" if reason == "length" else "cancelled"].inc()

    def page(self, core: EngineCore) -> str:
        """The whole page; a slot in use counts whole."""
        self._for_kv.set(len(core.waiting) if core.blocker() == "kv" else 0)
        self._used.set(len(core.running) * self._slot_bytes)
        self._rss.set(self._process.memory_info().rss)
        self._held.set(sum(sequence.computed for sequence in core.running))
        return self._page(core)

    def version(self) -> Mapping[str, object]:
        """The facts that the contiguous server states."""
        model = self._model
        return {
            "engine": "contiguous",
            "mode": "static",
            "batching": "continuous",
            "dtype": "simulated",
            "max_model_len": model.max_model_len,
            "max_num_seqs": model.max_num_seqs,
            "kv_budget_bytes": model.kv_budget_bytes,
            "kv_bytes_per_token": model.bytes_per_token,
        }

    @property
    def _slot_bytes(self) -> int:
        return self._model.max_model_len * self._model.bytes_per_token
