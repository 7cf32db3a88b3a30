"""What ``/metrics`` exposes: prefix ``contiguous_``, its own registry, labelled by model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import psutil
import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from servers.contiguous.admission import FreeSpace

_LATENCY_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0
)  # fmt: skip
_GAP_S = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0
)  # fmt: skip

#: how a request ended: ``stop``, ``length``, ``cancelled`` (its client left), ``error``,
#: ``rejected`` (503), ``invalid`` (400)
OUTCOMES = ("stop", "length", "cancelled", "error", "rejected", "invalid")


@dataclass(frozen=True)
class EngineSnapshot:
    """The engine's gauges at one moment."""

    running: int
    waiting: int
    #: of those, the ones that the KV budget and not the turn keeps out
    waiting_for_kv: int
    kv_reserved_bytes: int
    kv_used_bytes: int
    kv_tokens_held: int
    kv_padding_bytes: int = 0
    #: of those that wait for KV, the ones that the free bytes would do for in one piece
    waiting_for_region: int = 0
    #: of an arena; None without one
    free_space: FreeSpace | None = None


class RequestMetrics:
    """Counters and histograms, written by the engine thread and the HTTP side."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["model"], registry=registry).labels(model)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ["model"], registry=registry, buckets=buckets)
            return made.labels(model)

        self.prompt_tokens = counter(
            "contiguous_prompt_tokens", "Prompt tokens prefilled, counted chunk by chunk"
        )
        self.generation_tokens = counter("contiguous_generation_tokens", "Tokens generated")
        requests = Counter(
            "contiguous_requests",
            "Requests by how they ended",
            ["model", "outcome"],
            registry=registry,
        )
        self._outcomes = {outcome: requests.labels(model, outcome) for outcome in OUTCOMES}
        self.queue_s = histogram(
            "contiguous_queue_seconds", "From submission to admission", _LATENCY_S
        )
        self.prefill_s = histogram(
            "contiguous_prefill_seconds", "From admission to the first token", _LATENCY_S
        )
        self.decode_s = histogram(
            "contiguous_decode_seconds", "From the first token to the last", _LATENCY_S
        )
        self.ttft_s = histogram(
            "contiguous_time_to_first_token_seconds",
            "From submission to the first token, inside the server",
            _LATENCY_S,
        )
        self.gap_s = histogram(
            "contiguous_inter_token_latency_seconds", "Between two tokens of a request", _GAP_S
        )

    def ended(self, outcome: str) -> None:
        """Count one request's end; ``outcome`` is one of ``OUTCOMES``."""
        self._outcomes[outcome].inc()


class GaugeCollector:
    """Gauges that are read when scraped, so that nothing is written per token."""

    def __init__(
        self,
        model: str,
        snapshot: Callable[[], EngineSnapshot],
        info: Mapping[str, object],
        *,
        cuda: bool,
    ) -> None:
        self._model = model
        self._snapshot = snapshot
        self._info = {name: "None" if value is None else str(value) for name, value in info.items()}
        self._constants = {
            name: value
            for name in ("slots", "kv_budget_bytes")
            if isinstance(value := info.get(name), int)
        }
        self._cuda = cuda
        self._process = psutil.Process()

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        now = self._snapshot()
        yield self._gauge("requests_running", "Requests admitted and not ended", now.running)
        yield self._gauge("requests_waiting", "Requests in the queue", now.waiting)
        yield self._gauge(
            "requests_waiting_for_kv",
            "Waiting requests that the KV budget keeps out: the blocked one and all behind it",
            now.waiting_for_kv,
        )
        yield self._gauge(
            "kv_reserved_bytes",
            "static: slots of max_model_len, or regions, of those who hold one; "
            "dynamic: requests x longest promise (prompt + max_tokens); "
            "batching static: rows x columns until the whole batch has ended",
            now.kv_reserved_bytes,
        )
        yield self._gauge(
            "kv_used_bytes",
            "Storages that hold the rows in use, padding included",
            now.kv_used_bytes,
        )
        yield self._gauge("kv_tokens_held", "Tokens stored, without padding", now.kv_tokens_held)
        yield self._gauge(
            "kv_padding_bytes",
            "Of the bytes used, columns that no running request reads",
            now.kv_padding_bytes,
        )
        if now.free_space is not None:
            yield from self._arena(now, now.free_space)
        yield from self._fixed()
        yield from self._memory()

    def _arena(self, now: EngineSnapshot, free: FreeSpace) -> Iterator[Metric]:
        yield self._gauge(
            "requests_waiting_for_region",
            "Requests that wait for KV although the free bytes would do in one piece",
            now.waiting_for_region,
        )
        yield self._gauge("kv_free_bytes", "Of the arena, in all regions' gaps", free.total_bytes)
        yield self._gauge(
            "kv_largest_free_bytes", "The longest contiguous free piece", free.largest_bytes
        )

    def _fixed(self) -> Iterator[Metric]:
        texts = {
            "slots": "Slots of max_model_len tokens (static cache only)",
            "kv_budget_bytes": "KV bytes that admission may promise",
        }
        for name, value in self._constants.items():
            yield self._gauge(name, texts[name], value)
        family = GaugeMetricFamily(
            "contiguous_cache_info", "How the cache was set up", labels=list(self._info)
        )
        family.add_metric(list(self._info.values()), 1)
        yield family

    def _memory(self) -> Iterator[Metric]:
        yield self._gauge(
            "process_resident_memory_bytes",
            "Resident memory of the server process",
            self._process.memory_info().rss,
        )
        if not self._cuda:
            return
        yield self._gauge(
            "cuda_allocated_bytes", "torch.cuda.memory_allocated", torch.cuda.memory_allocated()
        )
        yield self._gauge(
            "cuda_reserved_bytes", "torch.cuda.memory_reserved", torch.cuda.memory_reserved()
        )
        yield self._gauge(
            "cuda_max_allocated_bytes",
            "torch.cuda.max_memory_allocated",
            torch.cuda.max_memory_allocated(),
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"contiguous_{name}", text, labels=["model"])
        family.add_metric([self._model], value)
        return family


class ServerMetrics:
    """The registry and all that is in it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.registry = CollectorRegistry()
        self.requests = RequestMetrics(self.registry, model)

    def add_gauges(
        self, snapshot: Callable[[], EngineSnapshot], info: Mapping[str, object], *, cuda: bool
    ) -> None:
        """Register the gauges; ``info`` becomes the labels of contiguous_cache_info."""
        self.registry.register(GaugeCollector(self.model, snapshot, info, cuda=cuda))

    def text(self) -> bytes:
        """Prometheus' text exposition."""
        return generate_latest(self.registry)
