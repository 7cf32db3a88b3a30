"""What a check says: one row, with what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

#: how kvknee's servers come up: Docker Compose, or ``kvknee up`` on the machine itself
Way = Literal["compose", "local"]
WAYS: tuple[Way, ...] = ("compose", "local")
#: the command that each way is about
COMMANDS: dict[Way, str] = {"compose": "docker compose up", "local": "kvknee up"}


class Status(StrEnum):
    """How much a row matters."""

    OK = "ok"
    #: works, or cannot be told; something to know before it surprises
    WARNING = "warning"
    #: blocks what was asked
    FAULT = "fault"


@dataclass(frozen=True)
class Row:
    """One finding. ``name`` is stable: scripts read it from ``--json``."""

    name: str
    status: Status
    #: what was found, in one line
    found: str
    #: what to do, in one line; empty when there is nothing to do
    remedy: str = ""
    #: whom it concerns
    ways: tuple[Way, ...] = WAYS


def ok(name: str, found: str, ways: tuple[Way, ...] = WAYS) -> Row:
    """A row about which nothing is to be done."""
    return Row(name, Status.OK, found, "", ways)


def warning(name: str, found: str, remedy: str, ways: tuple[Way, ...] = WAYS) -> Row:
    """A row to know about."""
    return Row(name, Status.WARNING, found, remedy, ways)


def fault(name: str, found: str, remedy: str, ways: tuple[Way, ...] = WAYS) -> Row:
    """A row that blocks the ways it names."""
    return Row(name, Status.FAULT, found, remedy, ways)


def blocking(rows: Iterable[Row], way: Way) -> tuple[str, ...]:
    """Names of the rows that block a way; empty when it is open."""
    return tuple(row.name for row in rows if row.status is Status.FAULT and way in row.ways)
