"""``scripts/image_torch.sh``: which torch goes into an image, and from where."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compose.files import ROOT

#: writes down its arguments; without an index it has no CPU build
PIP = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in
    *--index-url*) ;;
    uninstall*) ;;
    *+cpu) echo "ERROR: No matching distribution found" >&2; exit 1 ;;
esac
"""


def install(folder: Path, **variables: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script with a recorded pip; returns what it did and pip's calls."""
    pip = folder / "pip"
    pip.write_text(PIP)
    pip.chmod(0o755)
    calls = folder / "calls"
    done = subprocess.run(
        ["sh", "scripts/image_torch.sh", "servers/paged/requirements-cpu.txt"],
        cwd=ROOT,
        env={"PATH": f"{folder}:/usr/bin:/bin", "CALLS": str(calls), **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("variables", "arguments"),
    [
        ({}, "install --no-deps torch==2.13.0"),
        (
            {"TORCH_BUILD": "+cpu", "TORCH_INDEX": "http://127.0.0.1:1/cpu"},
            "install --no-deps --index-url http://127.0.0.1:1/cpu torch==2.13.0+cpu",
        ),
        (
            {"TORCH_BUILD": "+cu126", "TORCH_INDEX": "http://127.0.0.1:1/cu126"},
            "install --no-deps --index-url http://127.0.0.1:1/cu126 torch==2.13.0+cu126",
        ),
    ],
)
def test_the_pinned_version_in_the_asked_build(
    variables: dict[str, str], arguments: str, tmp_path: Path
) -> None:
    done, calls = install(tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert calls == [arguments]


def test_a_build_of_pytorchs_own_index(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "uv $*" >>"$CALLS"\n')
    uv.chmod(0o755)
    done, calls = install(tmp_path, TORCH_BUILD="+cpu")
    assert done.returncode == 0, done.stderr
    assert calls[-2].endswith("--torch-backend cpu --no-deps torch==2.13.0+cpu")
    assert calls[-1] == "uninstall --yes uv"


def test_a_build_that_no_source_has(tmp_path: Path) -> None:
    done, _ = install(tmp_path, TORCH_BUILD="+cpu")
    assert done.returncode == 1
    assert "kvknee: torch==2.13.0+cpu is neither in pip's sources nor" in done.stderr
    assert "TORCH_INDEX in .env" in done.stderr
