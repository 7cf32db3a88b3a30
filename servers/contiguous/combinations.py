"""Settings that cannot go together, refused before anything is loaded."""

from __future__ import annotations

from harness.errors import OptionError
from servers.contiguous.settings import Settings


def check_reserve_and_batching(settings: Settings) -> None:
    """Raises OptionError for a reservation or a batch that the other settings rule out."""
    if settings.reserve != "max" and settings.cache != "static":
        raise OptionError(
            "--reserve",
            settings.reserve,
            f"--cache static: {settings.cache} is not allocated beforehand",
        )
    if settings.batching != "static":
        if settings.batch_size is not None:
            raise OptionError("--batch-size", settings.batch_size, "--batching static with it")
        return
    if settings.cache not in ("static", "dynamic"):
        raise OptionError(
            "--batching", "static", f"--cache static or dynamic, not {settings.cache}"
        )
    if settings.seqs_limit > settings.max_num_seqs:
        raise OptionError(
            "--batch-size",
            settings.batch_size,
            f"at most --max-num-seqs {settings.max_num_seqs}",
        )
