"""What SGLang, Text Generation Inference and llama.cpp say of themselves, each on its page.

Written after their documentation and source: SGLang's ``/get_server_info`` answers with its
server arguments, TGI's ``/info`` with its router's, llama.cpp's ``/props`` with its slots
and the context of one (tools/server/README.md). What a version leaves out stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.errors import printable, shortened
from harness.manifest import BackendInfo

Facts = Mapping[str, Any]

#: kind -> the page with its facts
FACT_PAGES: Mapping[str, str] = {
    "sglang": "/get_server_info",
    "tgi": "/info",
    "llamacpp": "/props",
}
#: ``router`` of TGI's ``/info``
TGI_ROUTER = "text-generation-router"
#: of what is shown of a server's words
_TEXT_LENGTH = 120
_LARGEST = 2**63 - 1


def with_facts(info: BackendInfo, page: Facts) -> BackendInfo:
    """The backend completed by its page; what it stated before stays."""
    readers = {"sglang": _sglang, "tgi": _tgi, "llamacpp": _llamacpp}
    found = {
        name: value
        for name, value in readers[info.kind](page).items()
        if value is not None and getattr(info, name) is None
    }
    return msgspec.structs.replace(info, **found)


def _sglang(page: Facts) -> dict[str, object]:
    return {
        "engine_version": text(page.get("version")),
        "max_model_len": whole(page.get("context_length")),
        "max_num_seqs": whole(page.get("max_running_requests")),
    }


def _tgi(page: Facts) -> dict[str, object]:
    return {
        "engine_version": text(page.get("version")),
        "max_model_len": whole(page.get("max_total_tokens")),
        "max_num_seqs": whole(page.get("max_batch_size")),
    }


def _llamacpp(page: Facts) -> dict[str, object]:
    settings = page.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    return {
        "engine_version": text(page.get("build_info")),
        "max_model_len": whole(context),
        "max_num_seqs": whole(page.get("total_slots")),
    }


def text(value: object) -> str | None:
    """A text that says something, as it may be shown; None for anything else."""
    return shortened(printable(value), _TEXT_LENGTH) if isinstance(value, str) and value else None


def whole(value: object) -> int | None:
    """A number of things, given as a number or as a label's text; None for anything else.

    Nothing that is counted here can be none or fewer, or more than JSON readers hold.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if 1 <= number <= _LARGEST else None
