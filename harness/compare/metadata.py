"""What two runs must have in common before their figures may be put side by side.

A workload or a model that differs asks another question: the comparison is refused. What else
the fingerprints hold (dtype, engine version, hardware, limits of a server) may be the very thing
that is compared: it is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from harness.compare.types import Mismatch
from harness.manifest import Manifest
from harness.records import Scalar

_ABSENT = "not stated"
#: facts that follow from others, which say it better
_DERIVED = frozenset({"workload.hash", "harness.schema"})


def mismatches(a: Manifest, b: Manifest, names: Mapping[str, str]) -> tuple[Mismatch, ...]:
    """All that differs, what refuses first; ``names`` are B's backends by A's."""
    found = [*_workload(a, b), *_backends(a, b, names), *_others(a, b), *_limits(a, b)]
    return tuple(sorted(found, key=lambda item: not item.refuses))


def paired_names(a: Manifest, b: Manifest) -> dict[str, str]:
    """B's backend for each of A's: of the same name, or the only one of each run."""
    of_a, of_b = [info.name for info in a.backends], [info.name for info in b.backends]
    if len(of_a) == len(of_b) == 1:
        return {of_a[0]: of_b[0]}
    return {name: name for name in of_a if name in of_b}


def _workload(a: Manifest, b: Manifest) -> Iterator[Mismatch]:
    one, other = (_flat(msgspec.to_builtins(side.workload)) for side in (a, b))
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield Mismatch(
                f"workload.{name}", _text(one.get(name)), _text(other.get(name)), refuses=True
            )


def _backends(a: Manifest, b: Manifest, names: Mapping[str, str]) -> Iterator[Mismatch]:
    for own, others in names.items():
        if own != others:
            yield Mismatch("backend", own, others, refuses=False)
        for fact in sorted(_facts(a, own) | _facts(b, others)):
            one = a.fingerprint.get(f"{own}.{fact}")
            other = b.fingerprint.get(f"{others}.{fact}")
            if one != other:
                yield Mismatch(f"{own}.{fact}", _text(one), _text(other), fact == "model")
        one, other = a.backend(own).model, b.backend(others).model
        if one != other and f"{own}.model" not in a.fingerprint:
            yield Mismatch(f"{own}.model", one, other, refuses=True)


def _facts(run: Manifest, backend: str) -> set[str]:
    start = f"{backend}."
    return {key.removeprefix(start) for key in run.fingerprint if key.startswith(start)}


def _others(a: Manifest, b: Manifest) -> Iterator[Mismatch]:
    """Hardware, and the harness itself."""
    for key in sorted(a.fingerprint.keys() | b.fingerprint.keys()):
        ours = key.startswith(("hardware.", "harness."))
        one, other = a.fingerprint.get(key), b.fingerprint.get(key)
        if ours and key not in _DERIVED and one != other:
            yield Mismatch(key, _text(one), _text(other), refuses=False)


def _limits(a: Manifest, b: Manifest) -> Iterator[Mismatch]:
    if a.slo != b.slo:
        one, other = (
            ", ".join(f"{k} {v:g}" for k, v in _flat(msgspec.to_builtins(x.slo)).items() if v)
            for x in (a, b)
        )
        yield Mismatch("slo", one or "none", other or "none", refuses=False)


def _flat(value: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Nested names joined by dots."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{start}{key}"
        if isinstance(item, Mapping):
            found |= _flat(item, f"{name}.")
        else:
            found[name] = item
    return found


def _text(value: Scalar | list[Any]) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
