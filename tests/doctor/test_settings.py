"""Values in .env that Compose accepts and a container would not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.doctor.examine import Report
from tests.doctor.well_machine import ROOT, faults, look, rows_of, well

FILES = ("docker-compose.yml", "docker-compose.cpu.yml", ".env.example")


def seen(folder: Path, env: str, **environment: str) -> Report:
    """Our own Compose files with that .env, on a machine where all else is well."""
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    (folder / ".env").write_text(env)
    files = tuple(folder / name for name in FILES[:2])
    return look(folder, well(environment={"PATH": "/usr/bin", **environment}), compose=files)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("KV_BUDGET_BYTES=16MiB", "as digits alone (1 GiB is 1073741824)"),
        ("KV_BUDGET_BYTES=-5", "a whole number of bytes"),
        ("MAX_MODEL_LEN=0", "a whole number above 0"),
        ("MAX_NUM_SEQS=x", "a whole number above 0"),
        ("CPU_THREADS=1.5", "a whole number above 0"),
        ("DTYPE=int3", "bfloat16, float16, float32 or auto"),
        ("CACHE=weird", "static or dynamic"),
        ("BATCHING=Continuous", "continuous or none"),
        ("RESULTS_USER=me", "the numbers of a user and group"),
    ],
)
def test_a_value_that_no_server_takes_is_named_and_not_shown(
    line: str, wanted: str, tmp_path: Path
) -> None:
    name, value = line.split("=")
    report = seen(tmp_path, f"# first\n{line}\n")
    (row,) = rows_of(report, "setting")
    assert row.found.startswith(f"{name} in .env (line 2) is nothing that ")
    assert wanted in row.remedy
    assert f"={value}" not in row.found + row.remedy
    assert "setting" in report.blocked_by("compose")


@pytest.mark.parametrize(
    "env",
    [
        "",
        "KV_BUDGET_BYTES=\nDTYPE=\nPAGED_PORT=\n",
        "KV_BUDGET_BYTES=33554432\nMAX_MODEL_LEN=512\nDTYPE=float32\nRESULTS_USER=1000\n",
        "KV_BUDGET_BYTES=${OTHER}\n",
        'CACHE="dynamic"  # of its own size\n',
        # no service of these files publishes it
        "DCGM_PORT=8000\n",
    ],
)
def test_values_that_are_fine(env: str, tmp_path: Path) -> None:
    assert rows_of(seen(tmp_path, env), "setting") == []


def test_the_shell_goes_before_the_file(tmp_path: Path) -> None:
    (row,) = rows_of(seen(tmp_path, "CACHE=static\n", CACHE="x"), "setting")
    assert row.found.startswith("CACHE in your shell")
    assert rows_of(seen(tmp_path, "CACHE=x\n", CACHE="static"), "setting") == []


def test_two_services_on_one_port(tmp_path: Path) -> None:
    """8001 is the contiguous server's default."""
    report = seen(tmp_path, "PAGED_PORT=8001\n")
    (row,) = rows_of(report, "setting")
    assert row.found == (
        "CONTIGUOUS_PORT in .env and PAGED_PORT in .env (line 1) are the same port, 8001"
    )
    assert "setting" in faults(report)
