"""Small things that a scenario needs of Locust."""

# Locust's event hooks carry no types
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from locust.env import Environment

from harness.load.report_row import stats_rows
from harness.records import Loop, RequestRecord


class RequestFailedError(Exception):
    """Shown by Locust as the reason of a failure."""


def shower(
    environment: Environment, loop: Loop, *, lengths: bool = False
) -> Callable[[RequestRecord], None]:
    """Feeds Locust's statistics; ``lengths``: of a run that has several."""

    def show(record: RequestRecord) -> None:
        for row in stats_rows(record, loop, lengths=lengths):
            environment.events.request.fire(
                request_type=row.request_type,
                name=row.name,
                response_time=row.response_time_ms,
                response_length=row.response_length,
                exception=RequestFailedError(row.failure) if row.failure else None,
                context={},
            )

    return show


def refuse_distributed(parser: argparse.ArgumentParser) -> None:
    """Refuse Locust's distributed modes as soon as the options are parsed.

    For a scenario that measures from one process only. A worker would wait for its master
    before any event fires, so there is no later place.
    """
    parse = parser.parse_args

    def parse_args(*args: Any, **kwargs: Any) -> argparse.Namespace:
        options: argparse.Namespace = parse(*args, **kwargs)
        for name in ("processes", "master", "worker"):
            if getattr(options, name, None):
                parser.error(f"--{name}: this scenario measures from one process; leave it out")
        return options

    parser.parse_args = parse_args  # type: ignore[assignment, method-assign]
