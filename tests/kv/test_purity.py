"""``harness/kv`` is arithmetic: it imports no I/O, no clock, and nothing of other stages."""

from __future__ import annotations

import ast
from pathlib import Path

import harness.kv

PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "decimal",
    "functools",
    "itertools",
    "math",
    "random",
    "re",
    "typing",
}
#: the manifest only for the type of what a prediction is asked about
STAGES = ("harness.kv", "harness.errors", "harness.manifest")


def test_imports() -> None:
    folder = Path(harness.kv.__file__).parent
    files = sorted(folder.rglob("*.py"))
    assert len(files) > 20
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                known = name.split(".")[0] in PURE or name.startswith(STAGES)
                assert known, f"{path.name} imports {name}"


def test_files_stay_small() -> None:
    for path in Path(harness.kv.__file__).parent.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 300, path
