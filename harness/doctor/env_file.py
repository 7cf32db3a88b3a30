"""Compose's ``.env`` file, read for its names. Its values are never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import UsageError

NAME = ".env"
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*(?:[=:]\s*(.*))?")
_QUOTED = re.compile(r"""(['"])(.*?)\1\s*(?:#.*)?""")
#: names whose values are secrets wherever they stand
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
#: shorter values would blot out ordinary words
_LEAST_SECRET = 4
_LEAST_VALUE = 2
HIDDEN = "***"


@dataclass(frozen=True)
class EnvEntry:
    """One assignment."""

    value: str = field(repr=False)
    line: int


@dataclass(frozen=True)
class EnvFile:
    """The assignments of a file; none when there is no file."""

    path: Path
    entries: Mapping[str, EnvEntry]
    #: lines that are no assignment
    bad_lines: tuple[int, ...] = ()


def read_env(path: Path) -> EnvFile:
    """Read a file of ``NAME=value`` lines; raises UsageError when it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return EnvFile(path, {})
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text file; write NAME=value lines in UTF-8") from error
    entries: dict[str, EnvEntry] = {}
    bad: list[int] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            bad.append(number)
        elif match[2] is not None:
            # a bare name takes its value from the shell
            entries[match[1]] = EnvEntry(_unquoted(match[2]), number)
    return EnvFile(path, entries, tuple(bad))


def _unquoted(text: str) -> str:
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[2]
    return re.split(r"\s#", text, maxsplit=1)[0].strip()


def is_secret(name: str) -> bool:
    """Whether a variable's value must never be shown."""
    return _SECRET.search(name) is not None


def secrets_of(environment: Mapping[str, str], *files: EnvFile) -> frozenset[str]:
    """The values that must not appear in any output."""
    named = [(name, value) for name, value in environment.items() if is_secret(name)]
    for file in files:
        named += [(name, entry.value) for name, entry in file.entries.items() if is_secret(name)]
    return frozenset(value for _, value in named if len(value) >= _LEAST_SECRET)


def hidden_values(*files: EnvFile) -> frozenset[str]:
    """All values of .env but numbers: what messages of others may repeat."""
    values = (entry.value for file in files for entry in file.entries.values())
    return frozenset(v for v in values if len(v) >= _LEAST_VALUE and not v.isdigit())


def without(text: str, secrets: frozenset[str]) -> str:
    """``text`` with every secret blotted out, the longest first."""
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def without_words(text: str, hidden: frozenset[str]) -> str:
    """The same for values that stand alone: a short one is part of many words."""
    for value in sorted(hidden, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text)
    return text
