"""What the simulated server may import: its model is pure and owes nothing to the analysis."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_import_direction import IMPURE, ROOT, forbidden, imports, starts_with

FOLDER = ROOT / "servers" / "simulated"
PURE = ("core", "distributions", "expected", "faults", "frames", "model", "requests", "settings")
#: all that the server takes from the harness
FROM_HARNESS = {
    "harness",
    "harness.__version__",
    "harness.errors",
    "harness.kv.units",
    "harness.plan.prompts",
    "harness.sizes",
}


@pytest.mark.parametrize("name", PURE)
def test_the_pure_parts_have_no_clock_and_no_io(name: str) -> None:
    path = FOLDER / f"{name}.py"
    assert forbidden(path, IMPURE | {"uvloop"}) == []
    ours = [m for m in imports(path) if starts_with(m, "servers")]
    # what a pure part imports of the server is pure
    assert {m.split(".")[2] for m in ours if m.count(".") == 2} <= set(PURE)


@pytest.mark.parametrize("name", ["core", "expected", "model"])
def test_the_model_knows_nothing_of_the_harness(name: str) -> None:
    """What it says must not come from what it is held against."""
    assert forbidden(FOLDER / f"{name}.py", {"harness"}) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_the_server_takes_little_from_the_harness(path: Path) -> None:
    found = {m for m in imports(path) if starts_with(m, "harness")}
    assert {m for m in found if not any(starts_with(m, a) for a in FROM_HARNESS - {"harness"})} <= {
        "harness"
    }
