"""A mix of lengths: made to fit the servers, once they have said what they can hold, and asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from harness.load.ask_settings import smallest_context
from harness.load.server_facts import ServerProbe
from harness.load.settings import LoadSettings
from harness.manifest import BackendInfo
from harness.plan.levels import asked_cells
from harness.plan.row_levels import MixLevels


def fitted(settings: LoadSettings) -> LoadSettings:
    """The settings with the requests of a mix; others as they are. Raises UsageError."""
    asked = settings.mix_ask
    if asked is None:
        return settings
    stated: list[tuple[str, int | None]] = []
    if asked.context_tokens is None:
        for address in settings.backends:
            with ServerProbe(address, settings.api_key) as probe:
                stated.append((address.name, probe.describe(settings.model).info.max_model_len))
    mix, said = asked.fitted(smallest_context(asked, stated))
    prompt_tokens, output_tokens = mix.usual
    workload = msgspec.structs.replace(
        settings.workload, prompt_tokens=prompt_tokens, output_tokens=output_tokens, asks=said
    )
    return replace(settings, workload=workload, mix=mix)


def mix_levels(settings: LoadSettings, backends: Sequence[BackendInfo]) -> MixLevels:
    """The listed levels, in order, all backends at each; every one asks for the mix's rows."""
    rows = settings.mix.rows if settings.mix is not None else ()
    return MixLevels(asked_cells(settings.workload, backends), rows)
