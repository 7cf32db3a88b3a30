"""What to start a server with so that it takes in no more than it holds."""

from __future__ import annotations

from harness.kv.modes import read_mode
from harness.manifest import BackendInfo
from harness.plan.search_types import Found
from harness.records import Loop


def found_flags(info: BackendInfo, found: Found, loop: Loop = "closed") -> tuple[str, ...]:
    """Flags to paste; none where no number of requests at once was found.

    vLLM and the contiguous server name the limit alike. A static batch also has a size of
    its own, which may not be larger.
    """
    held = found.last_good
    known = found.status == "found" and held is not None and held >= 1
    if loop == "open" or found.goal != "capacity" or not known or held is None:
        return ()
    if info.kind == "vllm":
        return ("--max-num-seqs", f"{held:.0f}")
    if info.kind != "contiguous":
        return ()
    mode = read_mode(info.mode)
    batch = mode is not None and mode.batching == "static"
    return (
        "--max-num-seqs",
        f"{held:.0f}",
        *(("--batch-size", f"{held:.0f}") if batch else ()),
    )


def in_effect(info: BackendInfo, found: Found) -> bool:
    """Whether the server runs with them already."""
    return found.last_good is not None and info.max_num_seqs == round(found.last_good)
