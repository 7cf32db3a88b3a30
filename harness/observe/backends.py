"""The table of servers that kvknee knows, and what each calls its metrics.

A new server is a new row in ``KINDS``: its metrics' prefix, one ``Metric`` per canonical
name, and where it states its KV pool. Nothing else in the harness knows a metric's name.

Names are *sample* names as they stand on a ``/metrics`` page: counters end in
``_total``, histograms are read by their ``_sum`` and ``_count``. Where a server renamed a
metric, ``Metric.names`` lists the names newest first and the first that has samples is
read, so that a page that carries both is not counted twice. Three old names of vLLM have
no successor with the same meaning and are not read: ``num_requests_swapped`` and
``cpu_cache_usage_perc`` (swapping is gone) and ``gpu_prefix_cache_hit_rate`` (a ratio
that became a pair of counters). ``request_time_per_output_token_seconds`` is no new name
of ``time_per_output_token_seconds``: it holds one mean per request, not every gap.

vLLM's and our own server's rows were written after recorded pages, the other three after
their documentation and source. All three count generated tokens when a request *ends*
(SGLang's ``observe_one_finished_request``, TGI's ``tgi_request_generated_tokens``,
llama.cpp's ``on_prediction``), so none of them states ``generation_tokens_total``, and what
a row leaves out is absent from every figure, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.observe import names as n

#: how the samples of one metric become one figure:
#: ``sum`` over engines and other labels, ``mean`` or ``max`` over engines
Rule = Literal["sum", "mean", "max"]


@dataclass(frozen=True)
class Metric:
    """Where one canonical quantity is found."""

    canonical: str
    #: sample names, newest first
    names: tuple[str, ...]
    rule: Rule = "sum"
    #: servers of this kind may lack it, so that its absence is no finding
    optional: bool = False
    #: a label and its value, where one metric holds several quantities
    only: tuple[str, str] | None = None

    @property
    def is_counter(self) -> bool:
        """Whether it only rises while the server lives."""
        return self.canonical.endswith(("_total", "_sum", "_count"))


@dataclass(frozen=True)
class PoolLabels:
    """The labels of an info metric (value 1.0) that describe the KV pool.

    Label values are strings and ``"None"`` means not stated.
    """

    metric: str
    total_bytes: str
    num_blocks: str | None = None
    block_size: str | None = None
    size_tokens: str | None = None
    utilization: str | None = None
    dtype: str | None = None
    #: labels whose value is one engine's, where the info metric stands once per engine
    per_engine: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BackendKind:
    """One row: a kind of server."""

    kind: str
    title: str
    #: what all its metrics' names start with; empty: cannot be recognised
    prefix: str
    metrics: tuple[Metric, ...]
    pool: PoolLabels | None = None
    #: used bytes follow from the usage ratio and the pool, which is reserved whole
    paged: bool = False
    #: labels of processes that each state the same figure: it counts once
    replica_labels: frozenset[str] = frozenset()
    #: labels by which a figure is also broken down: its total has them empty
    breakdown_labels: frozenset[str] = frozenset()
    #: ``owned_by`` of its models in ``/v1/models``, where that names the kind
    owner: str | None = None
    #: the flag without which it has no ``/metrics``
    metrics_flag: str | None = None

    def metric(self, canonical: str) -> Metric | None:
        """Where this kind states a canonical quantity; None when it does not."""
        return next((m for m in self.metrics if m.canonical == canonical), None)

    @property
    def sample_names(self) -> frozenset[str]:
        """All sample names worth keeping from a page of this kind."""
        found = {name for metric in self.metrics for name in metric.names}
        return frozenset(found | ({self.pool.metric} if self.pool else set()))

    @property
    def required(self) -> tuple[str, ...]:
        """Canonical names that every server of this kind states."""
        return tuple(m.canonical for m in self.metrics if not m.optional)


_VLLM_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

VLLM = BackendKind(
    kind="vllm",
    title="vLLM",
    prefix="vllm:",
    paged=True,
    metrics=(
        Metric(n.RUNNING, ("vllm:num_requests_running",)),
        Metric(n.WAITING, ("vllm:num_requests_waiting",)),
        # called a percentage by its name, yet 1 means 100 percent
        Metric(n.KV_USAGE_RATIO, _VLLM_USAGE, rule="mean"),
        Metric(n.KV_USAGE_RATIO_MAX, _VLLM_USAGE, rule="max"),
        Metric(n.PREEMPTIONS_TOTAL, ("vllm:num_preemptions_total",)),
        Metric(
            n.PREFIX_QUERIES_TOTAL,
            ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        ),
        Metric(
            n.PREFIX_HITS_TOTAL,
            ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        ),
        Metric(n.PROMPT_TOKENS_TOTAL, ("vllm:prompt_tokens_total",)),
        # not request_generation_tokens_sum, which counts finished requests only
        Metric(n.GENERATION_TOKENS_TOTAL, ("vllm:generation_tokens_total",)),
        Metric(n.REQUESTS_TOTAL, ("vllm:request_success_total",)),
        Metric(n.QUEUE_SECONDS_SUM, ("vllm:request_queue_time_seconds_sum",)),
        Metric(n.QUEUE_SECONDS_COUNT, ("vllm:request_queue_time_seconds_count",)),
        Metric(n.TTFT_SECONDS_SUM, ("vllm:time_to_first_token_seconds_sum",)),
        Metric(n.TTFT_SECONDS_COUNT, ("vllm:time_to_first_token_seconds_count",)),
        Metric(
            n.ITL_SECONDS_SUM,
            ("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
        ),
        Metric(
            n.ITL_SECONDS_COUNT,
            ("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
        ),
    ),
    # One info series per engine. vLLM adds num_gpu_blocks up over its engines before it
    # writes the sum into each series; tokens and bytes stay those of one engine
    # (vllm/v1/engine/core_client.py, 0.32).
    pool=PoolLabels(
        metric="vllm:cache_config_info",
        total_bytes="kv_cache_memory_bytes",
        num_blocks="num_gpu_blocks",
        block_size="block_size",
        size_tokens="kv_cache_size_tokens",
        utilization="gpu_memory_utilization",
        dtype="cache_dtype",
        per_engine=frozenset({"kv_cache_memory_bytes", "kv_cache_size_tokens"}),
    ),
)

_KV_PARTS = ("contiguous_kv_part_bytes",)

CONTIGUOUS = BackendKind(
    kind="contiguous",
    title="contiguous cache",
    prefix="contiguous_",
    metrics=(
        Metric(n.RUNNING, ("contiguous_requests_running",)),
        Metric(n.WAITING, ("contiguous_requests_waiting",)),
        Metric(n.WAITING_FOR_KV, ("contiguous_requests_waiting_for_kv",)),
        Metric(n.SLOTS, ("contiguous_slots",), optional=True),
        Metric(n.KV_BUDGET_BYTES, ("contiguous_kv_budget_bytes",), optional=True),
        Metric(n.KV_RESERVED_BYTES, ("contiguous_kv_reserved_bytes",)),
        Metric(n.KV_USED_BYTES, ("contiguous_kv_used_bytes",)),
        Metric(n.KV_TOKENS_HELD, ("contiguous_kv_tokens_held",)),
        Metric(n.KV_PADDING_BYTES, ("contiguous_kv_padding_bytes",), optional=True),
        Metric(n.KV_FULL_BYTES, _KV_PARTS, optional=True, only=("part", "full")),
        Metric(n.KV_PAYLOAD_BYTES, _KV_PARTS, optional=True, only=("part", "payload")),
        Metric(n.KV_SCALES_BYTES, _KV_PARTS, optional=True, only=("part", "scales")),
        Metric(n.KV_RESIDUAL_BYTES, _KV_PARTS, optional=True, only=("part", "residual")),
        Metric(n.TEMPORARY_PEAK_BYTES, ("contiguous_temporary_peak_bytes",), optional=True),
        Metric(n.PROMPT_TOKENS_TOTAL, ("contiguous_prompt_tokens_total",)),
        Metric(n.GENERATION_TOKENS_TOTAL, ("contiguous_generation_tokens_total",)),
        Metric(n.REQUESTS_TOTAL, ("contiguous_requests_total",)),
        Metric(n.QUEUE_SECONDS_SUM, ("contiguous_queue_seconds_sum",)),
        Metric(n.QUEUE_SECONDS_COUNT, ("contiguous_queue_seconds_count",)),
        Metric(n.TTFT_SECONDS_SUM, ("contiguous_time_to_first_token_seconds_sum",)),
        Metric(n.TTFT_SECONDS_COUNT, ("contiguous_time_to_first_token_seconds_count",)),
        Metric(n.ITL_SECONDS_SUM, ("contiguous_inter_token_latency_seconds_sum",)),
        Metric(n.ITL_SECONDS_COUNT, ("contiguous_inter_token_latency_seconds_count",)),
        Metric(n.PROCESS_RSS_BYTES, ("contiguous_process_resident_memory_bytes",)),
        Metric(n.CUDA_ALLOCATED_BYTES, ("contiguous_cuda_allocated_bytes",), optional=True),
        Metric(n.CUDA_RESERVED_BYTES, ("contiguous_cuda_reserved_bytes",), optional=True),
        Metric(n.CUDA_MAX_ALLOCATED_BYTES, ("contiguous_cuda_max_allocated_bytes",), optional=True),
    ),
    pool=PoolLabels(metric="contiguous_cache_info", total_bytes="kv_budget_bytes"),
)

# python/sglang/srt/observability/metrics_collector.py and docs/references/
# production_metrics.md of sgl-project/sglang. token_usage is used / total tokens of the
# fullest pool, cached prefixes that may be evicted not counted. Its pool is not read:
# SGLang admits by the tokens it *expects* a request to need, so that "fewer free blocks
# than the next prompt" says nothing of what it waits for.
_SGLANG_ITL = ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")

SGLANG = BackendKind(
    kind="sglang",
    title="SGLang",
    prefix="sglang:",
    owner="sglang",
    metrics_flag="--enable-metrics",
    replica_labels=frozenset({"tp_rank", "pp_rank", "moe_ep_rank"}),
    breakdown_labels=frozenset({"priority"}),
    metrics=(
        Metric(n.RUNNING, ("sglang:num_running_reqs",)),
        Metric(n.WAITING, ("sglang:num_queue_reqs",)),
        Metric(n.KV_USAGE_RATIO, ("sglang:token_usage",), rule="mean"),
        Metric(n.KV_USAGE_RATIO_MAX, ("sglang:token_usage",), rule="max"),
        Metric(n.KV_TOKENS_HELD, ("sglang:kv_used_tokens", "sglang:num_used_tokens")),
        # taken out of the running batch for want of KV memory: what vLLM calls preempted
        Metric(n.PREEMPTIONS_TOTAL, ("sglang:num_retracted_requests_total",), optional=True),
        # every prompt token is looked up; the hits' metric appears with the first hit
        Metric(n.PREFIX_QUERIES_TOTAL, ("sglang:prompt_tokens_total",)),
        Metric(n.PREFIX_HITS_TOTAL, ("sglang:cached_tokens_total",), optional=True),
        Metric(n.PROMPT_TOKENS_TOTAL, ("sglang:prompt_tokens_total",)),
        Metric(n.REQUESTS_TOTAL, ("sglang:num_requests_total",), optional=True),
        Metric(n.QUEUE_SECONDS_SUM, ("sglang:queue_time_seconds_sum",), optional=True),
        Metric(n.QUEUE_SECONDS_COUNT, ("sglang:queue_time_seconds_count",), optional=True),
        Metric(n.TTFT_SECONDS_SUM, ("sglang:time_to_first_token_seconds_sum",)),
        Metric(n.TTFT_SECONDS_COUNT, ("sglang:time_to_first_token_seconds_count",)),
        Metric(n.ITL_SECONDS_SUM, tuple(f"{name}_sum" for name in _SGLANG_ITL)),
        Metric(n.ITL_SECONDS_COUNT, tuple(f"{name}_count" for name in _SGLANG_ITL)),
    ),
)

# docs/source/reference/metrics.md of huggingface/text-generation-inference and its
# backends/v3/src/backend.rs. Its counters have no _total, a gauge appears when it is first
# set, and tgi_request_mean_time_per_token_duration is a mean per request, no gap. It states
# neither TTFT nor the use of its KV blocks.
TGI = BackendKind(
    kind="tgi",
    title="Text Generation Inference",
    prefix="tgi_",
    metrics=(
        Metric(n.RUNNING, ("tgi_batch_current_size",)),
        Metric(n.WAITING, ("tgi_queue_size",)),
        Metric(n.PROMPT_TOKENS_TOTAL, ("tgi_request_input_length_sum",)),
        Metric(n.REQUESTS_TOTAL, ("tgi_request_success",)),
        Metric(n.QUEUE_SECONDS_SUM, ("tgi_request_queue_duration_sum",)),
        Metric(n.QUEUE_SECONDS_COUNT, ("tgi_request_queue_duration_count",)),
    ),
)

# tools/server/README.md of ggml-org/llama.cpp, "GET /metrics", and the server's source.
# Builds since the middle of 2025 state neither KV figure.
LLAMACPP = BackendKind(
    kind="llamacpp",
    title="llama.cpp server",
    prefix="llamacpp:",
    owner="llamacpp",
    metrics_flag="--metrics",
    metrics=(
        Metric(n.RUNNING, ("llamacpp:requests_processing",)),
        Metric(n.WAITING, ("llamacpp:requests_deferred",)),
        Metric(n.KV_USAGE_RATIO, ("llamacpp:kv_cache_usage_ratio",), rule="mean", optional=True),
        Metric(n.KV_USAGE_RATIO_MAX, ("llamacpp:kv_cache_usage_ratio",), rule="max", optional=True),
        Metric(n.KV_TOKENS_HELD, ("llamacpp:kv_cache_tokens",), optional=True),
        Metric(n.PROMPT_TOKENS_TOTAL, ("llamacpp:prompt_tokens_total",)),
    ),
)

#: any server with an OpenAI-style API: nothing is known of its metrics
OPENAI = BackendKind(kind="openai", title="OpenAI-style server", prefix="", metrics=())

KINDS: Mapping[str, BackendKind] = {
    row.kind: row for row in (VLLM, CONTIGUOUS, SGLANG, TGI, LLAMACPP, OPENAI)
}


def backend_kind(kind: str) -> BackendKind:
    """The row of a kind; an unknown one is treated as ``openai``."""
    return KINDS.get(kind, OPENAI)


def detect_kind(text: str) -> str:
    """The kind of the server whose ``/metrics`` page this is; ``openai`` when unknown."""
    rows = [row for row in KINDS.values() if row.prefix]
    for line in text.splitlines():
        for row in rows:
            if line.startswith(row.prefix):
                return row.kind
    return OPENAI.kind


def kind_of_owner(owner: object) -> str:
    """The kind whose models are listed as owned by ``owner``; ``openai`` when unknown."""
    for row in KINDS.values():
        if row.owner is not None and row.owner == owner:
            return row.kind
    return OPENAI.kind


def combine(rule: Rule, figures: Sequence[float]) -> float:
    """One figure from one per label set; the sequence must not be empty."""
    if rule == "max":
        return max(figures)
    total = sum(figures)
    return total / len(figures) if rule == "mean" else total
