"""``python scenarios/cache_modes.py`` as its users run it, on a server that is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.locust_process import LIMIT_S, ROOT
from tests.support.fake_openai import FakeOpenAi, serve

QUICK = ("--levels", "1,2", "--prompt-tokens", "8", "--output-tokens", "4", "--min-requests", "3")


def cache_modes(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KVKNEE", "LOCUST"))}
    return subprocess.run(
        [sys.executable, "scenarios/cache_modes.py", *arguments],
        cwd=ROOT,
        env=environment | {"KVKNEE_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.slow
def test_a_foreign_server_is_measured_in_its_mode_and_the_others_are_told(tmp_path: Path) -> None:
    into = tmp_path / "into"
    for cache, bits in (("dynamic", None), ("quantized", 4)):
        version = {"engine": "contiguous", "cache": cache, "mode": cache, "kv_bits": bits}
        with serve(FakeOpenAi(version=version)) as server:
            ended = cache_modes(
                *("--url", server.url, "--into", str(into), "--modes", "dynamic,quantized-4,off"),
                *QUICK,
                home=tmp_path / "home",
            )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "is not ours to restart" in ended.stdout
    assert "python -m servers.contiguous --model MODEL --cache off" in ended.stdout
    # both modes stand in one table, the second with its ratios
    table = (into / "comparison.md").read_text()
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| dynamic",
        "| dynamic",
        "| quantized-4",
        "| quantized-4",
    ]
    assert "x)" not in rows[0]
    assert "x)" in rows[2]


def test_help_teaches(tmp_path: Path) -> None:
    ended = cache_modes("--help", home=tmp_path)
    assert ended.returncode == 0
    assert "Exit codes" in ended.stdout
