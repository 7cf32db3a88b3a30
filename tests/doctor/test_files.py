"""What the text of .env and of the Compose files tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.doctor.compose_files import (
    asks_for_gpu,
    find_files,
    text_asks_for_gpu,
    variables_of,
)
from harness.doctor.env_file import EnvFile, read_env, secrets_of, without, without_words
from harness.doctor.needed_ports import PUBLISHED, port_number
from harness.errors import UsageError
from tests.doctor.well_machine import GPU_DEVICES, ROOT, clone


def values(file: EnvFile) -> dict[str, tuple[str, int]]:
    return {name: (entry.value, entry.line) for name, entry in file.entries.items()}


def test_env_lines_as_compose_reads_them(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(
        b"\xef\xbb\xbfA=1\r\n# B=2\r\n\r\nexport C = x y # note\r\nD='a # b' # c\r\n"
        b'E="q"\r\nF=\r\nG\r\nH=a#b\r\n= no\r\n2X=1\r\nI: yaml\r\n'
    )
    file = read_env(path)
    assert values(file) == {
        "A": ("1", 1),
        "C": ("x y", 4),
        "D": ("a # b", 5),
        "E": ("q", 6),
        "F": ("", 7),
        "H": ("a#b", 9),
        "I": ("yaml", 12),
    }
    assert file.bad_lines == (10, 11)
    assert "x y" not in repr(file)


def test_env_that_is_missing_or_unreadable(tmp_path: Path) -> None:
    assert read_env(tmp_path / ".env").entries == {}
    (tmp_path / ".env").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        read_env(tmp_path / ".env")
    (tmp_path / "binary").write_bytes(b"A=\xff\n")
    with pytest.raises(UsageError, match="no text file"):
        read_env(tmp_path / "binary")


def test_secrets_are_told_by_their_names(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("ADMIN_PASSWORD=longer-word\nPORT=8000\nMY_TOKEN=ab\n")
    found = secrets_of({"OPENAI_API_KEY": "word", "HOME": "/home/x"}, read_env(tmp_path / ".env"))
    assert found == {"word", "longer-word"}
    # the longest first: else the rest of it would stay
    assert without("longer-word and swords", found) == "*** and s***s"
    assert without_words("no, not no.", frozenset({"no"})) == "***, not ***."


def test_variables_and_their_first_defaults() -> None:
    text = """
    # ${COMMENTED:-1}
    a: ${A:-x} ${A:-y} $B ${C} ${D-} ${E:?must be set}  # ${F}
    b: "$$NOT $${NOR:-1} http://h:${P:-80}/#${G}"
    """
    assert variables_of(text) == {
        "A": "x",
        "B": None,
        "C": None,
        "D": "",
        "E": None,
        "P": "80",
        "G": None,
    }


def test_the_shell_beats_env_and_env_beats_the_default(tmp_path: Path) -> None:
    files = find_files((), clone(tmp_path, env="PAGED_PORT=1\n"), {}, "cpu")
    assert files is not None
    assert [path.name for path in files.files] == ["docker-compose.yml", "docker-compose.cpu.yml"]
    assert files.setting("PAGED_PORT", {"PAGED_PORT": "2"}).value == "2"
    assert files.setting("PAGED_PORT", {}).place == "PAGED_PORT in .env (line 1)"
    assert files.setting("GRAFANA_PORT", {}).value == "3000"
    # a later file's default replaces an earlier one's
    assert files.setting("MODEL", {}).value == "tiny"


@pytest.mark.parametrize(
    ("service", "asks"),
    [
        ({"deploy": GPU_DEVICES}, True),
        ({"gpus": [{"count": -1}]}, True),
        ({"runtime": "nvidia"}, True),
        ({"deploy": {"resources": {"limits": {"memory": "1g"}}}}, False),
        ({"deploy": None}, False),
        ({}, False),
    ],
)
def test_whether_the_merged_files_ask_for_a_gpu(service: dict[str, Any], asks: bool) -> None:
    assert asks_for_gpu({"services": {"a": {}, "b": service}}) is asks


def test_whether_their_text_does(tmp_path: Path) -> None:
    clone(tmp_path)
    base, override = tmp_path / "docker-compose.yml", tmp_path / "docker-compose.cpu.yml"
    assert text_asks_for_gpu((base,))
    assert not text_asks_for_gpu((base, override))
    (tmp_path / "plain.yml").write_text("services: {a: {image: b}} # driver: nvidia\n")
    assert not text_asks_for_gpu((tmp_path / "plain.yml",))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8000", 8000),
        (" 1 ", 1),
        ("65535", 65535),
        ("0", None),
        ("65536", None),
        ("²", None),
        ("", None),
        ("8000-8001", None),
        ("+80", None),
        ("9" * 5000, None),
    ],
)
def test_port_numbers(text: str, number: int | None) -> None:
    assert port_number(text) == number


def test_the_ports_known_without_compose_are_those_of_our_files() -> None:
    """Of docker-compose.yml; a port of a profile is published only when it is asked for."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    written = {
        name: int(default or 0)
        for name, default in variables_of(text).items()
        if name.endswith("_PORT") and name != "LOAD_PORT"
    }
    assert written == dict(PUBLISHED)


def test_every_variable_that_the_doctor_reads_is_one_of_our_files() -> None:
    files = find_files((), ROOT, {}, "gpu")
    assert files is not None
    read = {"MODEL", "MODELS", "HF_TOKEN"} | {
        f"{server}_{what}" for server in ("PAGED", "CONTIGUOUS") for what in ("GPU", "GPU_MEMORY")
    }
    assert read <= files.variables.keys()
    shares = {files.setting(f"{name}_GPU_MEMORY", {}).value for name in ("PAGED", "CONTIGUOUS")}
    assert shares == {"0.45"}
