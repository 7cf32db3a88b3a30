"""Rows about values that Compose passes on unread, and that end a container at its start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from harness.doctor.compose_files import ComposeFiles, Setting
from harness.doctor.facts import Device
from harness.doctor.needed_ports import DCGM, port_number
from harness.doctor.rows import Row, Way, fault

_COMPOSE: tuple[Way, ...] = ("compose",)
_PORT = "_PORT"


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text, re.ASCII) is not None


#: variable -> (whether a value is one, what it has to be)
_RULES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    **dict.fromkeys(
        ("MAX_MODEL_LEN", "MAX_NUM_SEQS", "CPU_THREADS"),
        (_matches("[1-9][0-9]*"), "a whole number above 0"),
    ),
    "KV_BUDGET_BYTES": (
        _matches("[1-9][0-9]*"),
        "a whole number of bytes, as digits alone (1 GiB is 1073741824)",
    ),
    "DTYPE": (_matches("bfloat16|float16|float32|auto"), "bfloat16, float16, float32 or auto"),
    "CACHE": (_matches("static|dynamic"), "static or dynamic"),
    "BATCHING": (_matches("continuous|none"), "continuous or none"),
    "RESULTS_USER": (_matches("[0-9]+(:[0-9]+)?"), "the numbers of a user and group: id -u, id -g"),
}


def check_settings(
    files: ComposeFiles, device: Device, environment: Mapping[str, str]
) -> Iterator[Row]:
    """A fault for each value that the servers refuse, and for each port that is given twice.

    Values are never shown: only where they stand and what would be right.
    """
    for name, (fits, wanted) in _RULES.items():
        setting = files.setting(name, environment)
        value = setting.value if setting.given and name in files.variables else None
        # empty is as good as not set; what is made of other variables is Compose's to work out
        if value and "$" not in value and not fits(value):
            who = "Docker takes" if name == "RESULTS_USER" else "both servers take"
            found = f"{setting.place} is nothing that {who}"
            yield fault("setting", found, f"write {wanted}", _COMPOSE)
    yield from _ports_given_twice(files, device, environment)


def _ports_given_twice(
    files: ComposeFiles, device: Device, environment: Mapping[str, str]
) -> Iterator[Row]:
    first: dict[int, Setting] = {}
    for name in sorted(files.variables):
        if not name.endswith(_PORT) or (name == DCGM and device == "cpu"):
            continue
        setting = files.setting(name, environment)
        number = port_number(setting.value or files.variables[name] or "")
        if number is None:
            continue
        other = first.setdefault(number, setting)
        if other is not setting:
            found = f"{other.place} and {setting.place} are the same port, {number}"
            yield fault("setting", found, "give each its own", _COMPOSE)
