"""How a server reserves KV memory, as its mode says, and what a simulation of that predicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.table import CellTable
from harness.kv.modes import read_mode
from harness.kv.occupancy import Lengths, Occupancy, Policy, Pool, simulate
from harness.manifest import BackendInfo

#: Requests of a level that are simulated at most: more change the mean no more.
_MOST_REQUESTS = 2_000
_DEFAULT_BLOCK = 16


@dataclass(frozen=True)
class Reservation:
    """What a mode comes to."""

    policy: Policy
    #: one request at a time
    single: bool = False


def reservation_of(mode: str) -> Reservation | None:
    """Read ``paged``, ``static``, ``static/exact``, ``dynamic-batching-none``, ...; None where
    the way of reserving has no simulation.
    """
    if mode == "paged":
        return Reservation("paged")
    found = read_mode(mode)
    if found is None or found.batching == "static":
        # a static batch keeps its memory until all of it has ended
        return None
    single = found.batching == "none"
    if found.cache == "static":
        return Reservation(found.reserve, single)
    return Reservation("padded", single) if found.cache == "dynamic" else None


def predict_occupancy(info: BackendInfo, table: CellTable, users: int) -> Occupancy | None:
    """Simulate the requests of a level, in the order in which they were sent.

    Bytes per token are those of the model's config: nothing of the measured side is used.
    None where a fact is missing, or the mode has no simulation.
    """
    found = reservation_of(info.mode)
    pool = _pool(info)
    if found is None or pool is None or not table.n:
        return None
    order = np.argsort(table.reference_s, kind="stable")[:_MOST_REQUESTS]
    requests = [
        Lengths(int(prompt), int(output))
        for prompt, output in zip(table.asked_prompt[order], table.asked_output[order], strict=True)
    ]
    return simulate(found.policy, requests, pool, 1 if found.single else users)


def _pool(info: BackendInfo) -> Pool | None:
    if info.max_model_len is None:
        return None
    block = info.block_size or _DEFAULT_BLOCK
    if info.kv_budget_bytes is not None and info.kv_bytes_per_token:
        tokens = info.kv_budget_bytes // info.kv_bytes_per_token
    elif info.num_blocks is not None and info.block_size:
        tokens = info.num_blocks * info.block_size
    else:
        return None
    if not tokens:
        return None
    return Pool(
        tokens=tokens,
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        block_size=block,
    )
