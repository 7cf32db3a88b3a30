"""Canonical names: what a quantity is called here, whatever a server calls it.

Names end in their unit; ``_total``, ``_sum`` and ``_count`` mark counters, everything
else is a gauge. ``harness.observe.backends`` says which metric of which server each
one comes from.
"""

from __future__ import annotations

from typing import Final

#: requests that the engine computes now
RUNNING: Final = "running"
#: requests that the server accepted and has not started
WAITING: Final = "waiting"
#: those of the waiting that the KV budget, not the turn, keeps out
WAITING_FOR_KV: Final = "waiting_for_kv"
#: share of the usable KV blocks that hold tokens, 0..1, mean over engines
KV_USAGE_RATIO: Final = "kv_usage_ratio"
#: the same of the fullest engine; equals the mean where there is one engine
KV_USAGE_RATIO_MAX: Final = "kv_usage_ratio_max"
#: bytes of the blocks or storages that hold tokens
KV_USED_BYTES: Final = "kv_used_bytes"
#: bytes set aside: the pool, or what the admitted requests were promised
KV_RESERVED_BYTES: Final = "kv_reserved_bytes"
#: bytes that the server may use for KV at most
KV_BUDGET_BYTES: Final = "kv_budget_bytes"
KV_TOKENS_HELD: Final = "kv_tokens_held"
#: of the used bytes: columns that no request reads
KV_PADDING_BYTES: Final = "kv_padding_bytes"
#: of the used bytes, by what they are: keys and values at full precision; or of a quantized
#: cache the quantized values, their scales, and the newest tokens that are not quantized yet
KV_FULL_BYTES: Final = "kv_full_bytes"
KV_PAYLOAD_BYTES: Final = "kv_payload_bytes"
KV_SCALES_BYTES: Final = "kv_scales_bytes"
KV_RESIDUAL_BYTES: Final = "kv_residual_bytes"
#: most memory that a step took beside weights and cache, and gave back
TEMPORARY_PEAK_BYTES: Final = "temporary_peak_bytes"
SLOTS: Final = "slots"
PREEMPTIONS_TOTAL: Final = "preemptions_total"
#: tokens looked up in the prefix cache, and those found
PREFIX_QUERIES_TOTAL: Final = "prefix_queries_total"
PREFIX_HITS_TOTAL: Final = "prefix_hits_total"
PROMPT_TOKENS_TOTAL: Final = "prompt_tokens_total"
#: tokens generated, those of unfinished requests included
GENERATION_TOKENS_TOTAL: Final = "generation_tokens_total"
#: requests that ended, whatever their outcome
REQUESTS_TOTAL: Final = "requests_total"
QUEUE_SECONDS_SUM: Final = "queue_seconds_sum"
QUEUE_SECONDS_COUNT: Final = "queue_seconds_count"
TTFT_SECONDS_SUM: Final = "ttft_seconds_sum"
TTFT_SECONDS_COUNT: Final = "ttft_seconds_count"
#: the server's own gaps between tokens
ITL_SECONDS_SUM: Final = "itl_seconds_sum"
ITL_SECONDS_COUNT: Final = "itl_seconds_count"
#: resident memory of the server's process tree; shared pages count once per process
PROCESS_RSS_BYTES: Final = "process_rss_bytes"
#: memory in use on the backend's GPUs, by whoever
DEVICE_USED_BYTES: Final = "device_used_bytes"
CUDA_ALLOCATED_BYTES: Final = "cuda_allocated_bytes"
CUDA_RESERVED_BYTES: Final = "cuda_reserved_bytes"
CUDA_MAX_ALLOCATED_BYTES: Final = "cuda_max_allocated_bytes"
