"""Engines in the modes that ``servers.contiguous.modes`` makes."""

from __future__ import annotations

from typing import Any

from servers.contiguous.layout import probe_layout
from servers.contiguous.modes import mode_policy, mode_runner, windowed_layout
from servers.contiguous.settings import Settings
from tests.contiguous.support import CPU, Bench


def mode_bench(
    model: Any, cache: Any, *, budget: int = 64 * 2**20, prefill_chunk: int = 512, **settings: Any
) -> Bench:
    """Off, quantized or sliding over a real model."""
    chosen = Settings("tiny", "tiny", cache=cache, **settings)
    layout = windowed_layout(chosen, probe_layout(model, CPU))
    policy, runner = mode_policy(chosen, layout, budget), mode_runner(chosen, model, layout, CPU)
    assert policy is not None
    assert runner is not None
    return Bench(model, layout, prefill_chunk=prefill_chunk, policy=policy, runner=runner)
