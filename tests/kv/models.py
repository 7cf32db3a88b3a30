"""The configs of ``tests/fixtures/configs`` for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.kv.plan import plan
from harness.kv.plan_types import Plan, PlanOptions
from harness.kv.spec import ModelSpec, read_spec

CONFIGS = Path(__file__).parent.parent / "fixtures" / "configs"
GIB = 2**30


def config(name: str, **changes: Any) -> dict[str, Any]:
    """A config by file name, with changed top-level fields."""
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return loaded | changes


def spec(name: str, **changes: Any) -> ModelSpec:
    """The spec of a config by file name."""
    return read_spec(config(name, **changes))


def planned(name: str, options: PlanOptions | None = None, **changes: Any) -> Plan:
    """The plan of a config by file name."""
    return plan(config(name, **changes), options or PlanOptions(), name)
