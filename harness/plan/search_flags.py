"""What to limit so that a server takes in no more than it holds: its flags, or in words.

The flags of servers that are not ours were read in their documentation: SGLang's
docs/advanced_features/server_arguments.md, TGI's docs/source/reference/launcher.md and
llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

from harness.kv.modes import read_mode
from harness.manifest import BackendInfo
from harness.plan.search_types import Found
from harness.records import Loop

#: kind of server -> its limit of requests at once
_LIMITS = {
    "vllm": "--max-num-seqs",
    "contiguous": "--max-num-seqs",
    "sglang": "--max-running-requests",
    "tgi": "--max-concurrent-requests",
    "llamacpp": "--parallel",
}
#: what else such a limit does
_REMARKS = {
    "tgi": "what comes beyond is refused, not queued",
    "llamacpp": "each slot has its part of --ctx-size",
}
_UNITS: dict[Loop, str] = {"closed": "requests at once", "open": "requests/s"}


def found_flags(info: BackendInfo, found: Found, loop: Loop = "closed") -> tuple[str, ...]:
    """Flags to paste; none where no number of requests at once was found, or no flag is known.

    vLLM and the contiguous server name the limit alike. A static batch also has a size of
    its own, which may not be larger.
    """
    held = found.last_good
    known = found.status == "found" and held is not None and held >= 1
    flag = _LIMITS.get(info.kind)
    if loop == "open" or found.goal != "capacity" or not known or held is None or flag is None:
        return ()
    mode = read_mode(info.mode) if info.kind == "contiguous" else None
    batch = mode is not None and mode.batching == "static"
    return (flag, f"{held:.0f}", *(("--batch-size", f"{held:.0f}") if batch else ()))


def in_effect(info: BackendInfo, found: Found) -> bool:
    """Whether the server runs with them already.

    What TGI states is the size of a batch, which is another limit than its flag's.
    """
    if info.kind == "tgi" or found.last_good is None:
        return False
    return info.max_num_seqs == round(found.last_good)


def advice(info: BackendInfo, found: Found, loop: Loop = "closed") -> str:
    """What to do with what was found, in one line; empty where an SLO's knee was not found."""
    text = _slo_advice(found, loop) if found.goal == "slo" else _capacity_advice(info, found, loop)
    return f"{info.name}: {text}" if text else ""


def _slo_advice(found: Found, loop: Loop) -> str:
    if found.status != "found" or found.last_good is None:
        return ""
    most = f"for the SLO let in at most {found.last_good:g} {_UNITS[loop]}"
    if loop == "open":
        return f"{most}: limit the rate in its clients or at a proxy before it"
    return (
        f"{most}, limited in its clients or at a proxy before it: a server's own limit "
        "makes the others wait, and they miss it too"
    )


def _capacity_advice(info: BackendInfo, found: Found, loop: Loop) -> str:
    held, unit = found.last_good, _UNITS[loop]
    if found.status == "below_first":
        more = " or more KV memory" if found.cause == "kv_memory" else ""
        return f"no limit helps, the least is too much: it needs less load per request{more}"
    if held is None:
        return f"no limit to set yet: no number of {unit} is sure to be held"
    if found.status == "not_reached":
        return f"no limit is needed up to {held:g} {unit}"
    most = f"let in at most {held:g} {unit}"
    if found.status != "found":
        return f"until a longer search says more, {most}"
    if loop == "open":
        return f"{most}: limit the rate in its clients or at a proxy before it"
    return _limit(info, found) or f"{most}: set your server's own limit, or a proxy's before it"


def _limit(info: BackendInfo, found: Found) -> str:
    flags = " ".join(found_flags(info, found))
    if not flags:
        return ""
    if in_effect(info, found):
        return f"it runs with {flags} already"
    remark = _REMARKS.get(info.kind)
    return f"start it with {flags}" + (f" ({remark})" if remark else "")
