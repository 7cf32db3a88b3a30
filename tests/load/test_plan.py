"""What is gathered before a run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import OptionError, ResultsDirError
from harness.load.clock import SystemClock
from harness.load.kv_theory import known_config
from harness.load.plan import RunPlan, _launched, make_plan
from harness.load.settings import BackendAddress, LoadSettings
from harness.manifest import BackendInfo
from harness.plan.levels import FixedLevels
from harness.records import CellKey
from harness.stack.process import started_s
from harness.stack.state import StackState, state_path, write_state
from tests.load.test_run_parts import LAUNCH
from tests.load.test_settings import settings
from tests.support.fake_openai import FakeOpenAi, serve


def one_level(asked: LoadSettings, backends: Sequence[BackendInfo]) -> FixedLevels:
    return FixedLevels([CellKey(b.name, b.mode, 1, 1, 1.0) for b in backends])


def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> RunPlan:
    monkeypatch.setenv("KVKNEE_HOME", str(tmp_path / "home"))
    options = {"prometheus_url": "none", "results_dir": str(tmp_path / "results"), **options}
    with serve(FakeOpenAi(metrics="up 1\n")) as server:
        asked = settings(backends=f"paged={server.url}", **options)
        launch = {**{f: getattr(LAUNCH, f) for f in LAUNCH.__struct_fields__}, "url": server.url}
        launch |= {"pid": os.getpid(), "pid_started_s": started_s(os.getpid())}
        state = StackState(mark="m", settings={}, ready=True, backends=(type(LAUNCH)(**launch),))
        write_state(tmp_path / "home", state)
        return make_plan(asked, one_level, SystemClock())


def test_a_launched_server_is_known_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(tmp_path, monkeypatch)
    (info,) = made.infos
    assert (info.source, info.dtype, info.max_num_seqs) == ("launched", "bfloat16", 64)
    assert made.pids == {"paged": os.getpid()}
    assert made.targets == {"paged": info.url + "/metrics"}
    assert made.prometheus is None


def test_with_gpus_the_exporter_is_scraped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(tmp_path, monkeypatch, gpu=["paged=GPU-1"], dcgm_url="http://h:9400/metrics")
    assert made.targets["dcgm"] == "http://h:9400/metrics"


def test_two_runs_have_prompts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (plan(tmp_path, monkeypatch) for _ in range(2))
    assert first.nonce != second.nonce


def test_a_prometheus_that_was_named_must_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(OptionError) as caught:
        plan(tmp_path, monkeypatch, prometheus_url=f"http://u:hunter2@127.0.0.1:{port}")
    text = str(caught.value)
    assert text.startswith("--prometheus-url")
    assert "hunter2" not in text
    assert "\n" not in text


def test_the_results_dir_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsDirError):
        plan(tmp_path, monkeypatch, results_dir=str(tmp_path / "file" / "x"))


def test_a_damaged_state_is_a_warning_where_the_local_stack_could_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("KVKNEE_HOME", str(home))
    write_state(home, StackState(mark="m", settings={}))
    state_path(home).write_text("{")
    caplog.set_level(logging.WARNING)
    assert _launched((BackendAddress("far", "http://192.0.2.1:8000"),)) == ()
    assert caplog.messages == []
    assert _launched((BackendAddress("near", "http://localhost:8000"),)) == ()
    (said,) = caplog.messages
    assert "state.json: not readable as the stack's state" in said
    assert "delete the file" in said


def test_the_config_of_a_launched_model_is_taken_along(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    facts = {name: getattr(LAUNCH, name) for name in LAUNCH.__struct_fields__}
    launch = type(LAUNCH)(**{**facts, "model_path": str(folder)})
    named = tmp_path / "named.json"
    named.write_text('{"num_hidden_layers": 2}')
    # no config there: the one that was named, if any
    assert known_config(launch, None) is None
    assert known_config(launch, str(named)) == {"num_hidden_layers": 2}
    (folder / "config.json").write_text('{"num_hidden_layers": 4}')
    assert known_config(launch, str(named)) == {"num_hidden_layers": 4}
    # the server reads what this cannot: nothing is computed from it, and the run goes on
    (folder / "config.json").write_text("{")
    assert known_config(launch, None) is None
    assert known_config(None, None) is None
