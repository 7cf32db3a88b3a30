"""Real runs kept as fixtures: two-core machine, the local stack with ``tiny``, 300 + 100 tokens.

Made by ``scenarios/concurrency.py`` at levels 1, 4 and 12 against servers of 16 MiB of KV cache
and max_model_len 2,048; of each scraped page only the lines that are read were kept.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

_RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
#: vLLM 0.32.0 on the CPU beside the contiguous server with its static cache
PAGED_STATIC = "tiny-paged-static"
#: the contiguous server with its dynamic cache
DYNAMIC = "tiny-dynamic"


def stored_run(name: str, folder: Path) -> Path:
    """A copy of a run directory, its journals unpacked."""
    path = folder / name
    shutil.copytree(_RUNS / name, path)
    for journal in ("records.jsonl", "events.jsonl"):
        packed = path / f"{journal}.gz"
        (path / journal).write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return path
