"""The command: bad input is one line and exit code 2, said before anything is loaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from servers.contiguous import server
from servers.contiguous.cli import main
from servers.contiguous.settings import Settings, default_model_name
from tests.support.local_stack import free_port

MODEL = ["--model", "tiny"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["--model"]),
        ([*MODEL, "--frob", "1"], ["--frob"]),
        ([*MODEL, "--kv-budget", "16MIBS"], ["--kv-budget", "16MIBS", "16MiB"]),
        ([*MODEL, "--kv-budget", "0"], ["--kv-budget"]),
        ([*MODEL, "--cache", "paged"], ["--cache", "static", "dynamic"]),
        ([*MODEL, "--port", "70000"], ["--port"]),
        ([*MODEL, "--max-num-seqs", "0"], ["--max-num-seqs"]),
        ([*MODEL, "--max-model-len", "abc"], ["--max-model-len"]),
        ([*MODEL, "--prefill-chunk", "0"], ["--prefill-chunk"]),
        ([*MODEL, "--dtype", "int8"], ["--dtype", "bfloat16"]),
        ([*MODEL, "--threads", "0"], ["--threads"]),
        ([*MODEL, "--reserve", "half"], ["--reserve", "exact", "pow2", "max"]),
        ([*MODEL, "--cache", "dynamic", "--reserve", "exact"], ["--reserve", "exact", "static"]),
        ([*MODEL, "--batch-size", "4"], ["--batch-size", "4", "--batching static"]),
        ([*MODEL, "--batching", "static", "--batch-size", "0"], ["--batch-size"]),
        (
            [*MODEL, "--batching", "static", "--batch-size", "9", "--max-num-seqs", "8"],
            ["--batch-size", "9", "--max-num-seqs 8"],
        ),
        (["--model", "./no/such/folder"], ["--model", "./no/such/folder", "exists"]),
        (["--model", "/no/such/folder"], ["--model", "exists"]),
        ([*MODEL, "--host", "256.1.1.1"], ["--host", "256.1.1.1"]),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str], arguments: list[str], parts: list[str]
) -> None:
    # a server of this machine may have the port that is taken when none is named
    port = [] if "--port" in arguments else ["--port", str(free_port())]
    assert main([*arguments, *port]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    for part in parts:
        assert part in err


def test_a_taken_port_is_known_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main([*MODEL, "--port", port]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert port in err


def test_help_teaches_without_importing_torch() -> None:
    script = (
        "import sys\n"
        "from servers.contiguous.cli import main\n"
        "code = main(['--help'])\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for part in (
        "static",
        "dynamic",
        "--reserve",
        "pow2",
        "left",
        "--batch-size",
        "--prefill-chunk",
        "between two decode steps",
        "503",
    ):
        assert part in done.stdout


def test_settings_of_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(server, "serve", seen.append)
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert main(["--model", str(folder), "--kv-budget", "16MiB", "--batching", "none"]) == 0
    made = seen[0]
    assert made.served_model_name == "my-model"
    assert made.kv_budget_bytes == 16_777_216
    assert made.seqs_limit == 1
    assert (made.port, made.cache, made.prefill_chunk, made.max_waiting) == (
        8001,
        "static",
        512,
        256,
    )


def test_rows_of_a_static_batch() -> None:
    """8 by default, fewer where fewer may run."""
    assert Settings("m", "m", batching="static").seqs_limit == 8
    assert Settings("m", "m", batching="static", max_num_seqs=4).seqs_limit == 4
    assert Settings("m", "m", batching="static", batch_size=16).seqs_limit == 16


def test_a_hub_id_is_its_own_name() -> None:
    assert default_model_name("org/model") == "org/model"


def test_the_settings_and_the_options_have_the_same_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(server, "serve", seen.append)
    assert main(["--model", "m"]) == 0
    assert seen == [Settings(model="m", served_model_name="m")]
