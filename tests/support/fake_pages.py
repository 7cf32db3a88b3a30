"""What a fake server's metrics pages say over a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import BackendSeries, KvPool, Series
from tests.support.fake_records import LevelRun
from tests.support.fake_server import MIB, PROMPT, FakeServer


@dataclass
class Gauges:
    """The server's state over time, one value per sample."""

    t_s: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    prompt_total: list[float] = field(default_factory=list)

    def sample(self, run: LevelRun, interval_s: float) -> None:
        before = self.prompt_total[-1] if self.prompt_total else 0.0
        for t in np.arange(run.start_s, run.end_s, interval_s):
            live = [j for j in run.jobs if j.start_s <= t < j.end_s]
            held = [
                PROMPT + (int((t - j.first_s) / j.tpot_s) + 1 if t >= j.first_s else 0)
                for j in live
            ]
            self.t_s.append(float(t))
            self.running.append(len(live))
            self.waiting.append(sum(1 for j in run.jobs if j.sent_s <= t < j.start_s))
            self.tokens.append(sum(held))
            self.blocks.append(sum(math.ceil((n + 1) / 128) for n in held))
            self.prompt_total.append(before + PROMPT * sum(1 for j in run.jobs if j.first_s <= t))


def series_of(server: FakeServer, gauges: Gauges) -> BackendSeries:
    """What the observe half would make of these gauges."""

    def series(values: Sequence[float] | NDArray[np.float64]) -> Series:
        return Series(np.array(gauges.t_s), np.array(values, dtype=np.float64))

    info = server.info
    budget = float(info.kv_budget_bytes or 0)
    n = len(gauges.t_s)
    values: dict[str, Series] = {
        names.RUNNING: series(gauges.running),
        names.WAITING: series(gauges.waiting),
        names.KV_BUDGET_BYTES: series([budget] * n),
        names.PROMPT_TOKENS_TOTAL: series(gauges.prompt_total),
    }
    pool = KvPool(total_bytes=info.kv_budget_bytes)
    if info.kind == "vllm":
        block_bytes = budget / (info.num_blocks or 1)
        pool = KvPool(
            total_bytes=info.kv_budget_bytes,
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            size_tokens=(info.num_blocks or 0) * (info.block_size or 0),
        )
        blocks = np.array(gauges.blocks, dtype=np.float64)
        values |= {
            names.KV_USAGE_RATIO: series(blocks / 127),
            names.KV_USED_BYTES: series(blocks * block_bytes),
            names.KV_RESERVED_BYTES: series([budget] * n),
            names.PREEMPTIONS_TOTAL: series([0.0] * n),
            names.PREFIX_QUERIES_TOTAL: series(gauges.prompt_total),
            names.PREFIX_HITS_TOTAL: series([0.0] * n),
        }
    else:
        slot = (info.max_model_len or 0) * (info.kv_bytes_per_token or 0)
        values |= {
            names.WAITING_FOR_KV: series(gauges.waiting),
            names.KV_USED_BYTES: series(np.array(gauges.running) * float(slot)),
            names.KV_RESERVED_BYTES: series(np.array(gauges.running) * float(slot)),
            names.KV_TOKENS_HELD: series(gauges.tokens),
        }
    return BackendSeries(
        backend=info.name,
        source="scraper",
        values=values,
        pool=pool,
        failed_t_s=np.empty(0),
        failures=(),
        missing=(),
    )


def pages_of(server: FakeServer, gauges: Gauges) -> list[tuple[float, str]]:
    make = _vllm_page if server.info.kind == "vllm" else _contiguous_page
    return [(t_s, make(server.info, gauges, index)) for index, t_s in enumerate(gauges.t_s)]


def _vllm_page(info: BackendInfo, gauges: Gauges, i: int) -> str:
    labels = '{engine="0",model_name="tiny"}'
    facts = {
        "num_requests_running": gauges.running[i],
        "num_requests_waiting": gauges.waiting[i],
        "kv_cache_usage_perc": gauges.blocks[i] / 127,
        "num_preemptions_total": 0,
        "prefix_cache_queries_total": gauges.prompt_total[i],
        "prefix_cache_hits_total": 0,
        "prompt_tokens_total": gauges.prompt_total[i],
        "generation_tokens_total": 0,
        "request_success_total": 0,
        **{
            f"{histogram}_seconds_{part}": 0
            for histogram in ("request_queue_time", "time_to_first_token", "inter_token_latency")
            for part in ("sum", "count")
        },
    }
    lines = [f"vllm:{name}{labels} {value}" for name, value in facts.items()]
    pool = (
        f'block_size="{info.block_size}",num_gpu_blocks="{info.num_blocks}",'
        f'kv_cache_memory_bytes="{info.kv_budget_bytes}",kv_cache_size_tokens="16384",engine="0"'
    )
    return "\n".join([*lines, f"vllm:cache_config_info{{{pool}}} 1.0", ""])


def _contiguous_page(info: BackendInfo, gauges: Gauges, i: int) -> str:
    slot = (info.max_model_len or 0) * (info.kv_bytes_per_token or 0)
    facts = {
        "requests_running": gauges.running[i],
        "requests_waiting": gauges.waiting[i],
        "requests_waiting_for_kv": gauges.waiting[i],
        "slots": 8,
        "kv_budget_bytes": info.kv_budget_bytes,
        "kv_reserved_bytes": gauges.running[i] * slot,
        "kv_used_bytes": gauges.running[i] * slot,
        "kv_tokens_held": gauges.tokens[i],
        "prompt_tokens_total": gauges.prompt_total[i],
        "generation_tokens_total": 0,
        "requests_total": 0,
        "process_resident_memory_bytes": 700 * MIB,
        **{
            f"{histogram}_seconds_{part}": 0
            for histogram in ("queue", "time_to_first_token", "inter_token_latency")
            for part in ("sum", "count")
        },
    }
    lines = [f'contiguous_{name}{{model="tiny"}} {value}' for name, value in facts.items()]
    pool = f'model="tiny",mode="static",kv_budget_bytes="{info.kv_budget_bytes}"'
    return "\n".join([*lines, f"contiguous_cache_info{{{pool}}} 1.0", ""])
