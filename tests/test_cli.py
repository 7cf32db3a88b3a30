"""The command line: one line for what is wrong, the right exit code, a fast start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import __version__, cli
from harness.cli import newest_run, run
from harness.errors import RunDirError, StackError, UsageError
from harness.stack import local
from servers.contiguous.cli import main as contiguous_main
from tests.support.local_stack import free_port

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVKNEE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["uo"], "unknown command 'uo'; did you mean up?"),
        (["reprot"], "unknown command 'reprot'; did you mean report?"),
        (
            ["frobnicate"],
            "unknown command 'frobnicate'; expected one of calibrate, compare, doctor, down, "
            "equivalence, history, nightly, plan, reconcile, report, serve, status, up",
        ),
        (
            ["up", "--kv-budge", "1GiB"],
            "No such option '--kv-budge'. (Did you mean one of: '--kv-b",
        ),
        (["--versoin"], "No such option '--versoin'. Did you mean '--version'?"),
        (["up", "tiny"], "Got unexpected extra argument (tiny)"),
        (["up", "--model"], "Option '--model' requires an argument."),
        (["up", "--model", "tinny"], "did you mean tiny?"),
        (["up", "--model", "/no/such/model"], "--model: '/no/such/model' is not valid"),
        (
            ["up", "--kv-budget", "lots"],
            "--kv-budget: 'lots' is not valid; expected a size such as",
        ),
        (["up", "--max-model-len", "0"], "'--max-model-len': 0 is not in the range x>=1"),
        (["up", "--max-num-seqs", "many"], "'--max-num-seqs': 'many' is not a valid integer"),
        (["up", "--cache", "statc"], "'--cache': 'statc' is not one of 'off', 'dynamic',"),
        (["up", "--backends", "vllm"], "--backends: 'vllm' is not valid; expected paged, contig"),
        (["up", "--paged-port", "70000"], "'--paged-port': 70000 is not in the range"),
        (["up", "--paged-port", "8001"], "--contiguous-port: 8001 is not valid; expected another"),
        (["report", "nowhere"], "nowhere: no run directory (manifest.json is missing)"),
        (["report"], "no run directory under"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvknee: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_a_taken_port_names_port_and_holder(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert run(["up", "--backends", "paged", "--paged-port", str(port)]) == 2
    error = capsys.readouterr().err
    # its name and nothing of its command line, which may carry a key
    own = psutil.Process()
    assert f"port {port} is taken by pid {os.getpid()} ({own.name()}); end that" in error
    assert not any(argument in error for argument in own.cmdline()[1:] if len(argument) > 3)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (UsageError("bad\n  input"), 2, "kvknee: bad input\n"),
        (StackError("paged ended"), 1, "kvknee: paged ended\n"),
        (RunDirError("none"), 2, "kvknee: none\n"),
        (KeyboardInterrupt(), 130, "kvknee: interrupted\n"),
    ],
)
def test_every_error_of_ours_is_its_line_and_its_code(
    raised: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def down(home: Path) -> None:
        raise raised

    monkeypatch.setattr(local, "down", down)
    assert run(["down"]) == code
    assert capsys.readouterr().err.endswith(line)


def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(home: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(local, "down", down)
    with pytest.raises(ZeroDivisionError):
        run(["down"])


def test_down_and_status_with_nothing_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["down"]) == 0
    assert run(["status"]) == 1
    assert capsys.readouterr().out == "nothing is up\nnothing is up\n"


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"kvknee {__version__}\n"
    for arguments in ([], ["--help"], ["-h"]):
        assert run(arguments) == 0
        assert "Start the servers on this machine" in capsys.readouterr().out
    assert run(["up", "--help"]) == 0
    assert "tiny 16MiB, smollm2 256MiB" in capsys.readouterr().out


def test_the_report_verb_builds_prints_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(["older", "newer"]):
        manifest = tmp_path / "results" / name / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
        os.utime(manifest, (1000 + number, 1000 + number))
    (tmp_path / "results" / "no-run").mkdir()
    assert newest_run(tmp_path / "results").name == "newer"

    build, terminal = types.ModuleType("build"), types.ModuleType("terminal")
    built: list[Any] = []
    build.build_report = lambda path: built.append(path) or "the summary"  # type: ignore[attr-defined]
    terminal.print_summary = lambda summary, console: built.append(summary)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "harness.report.build", build)
    monkeypatch.setitem(sys.modules, "harness.report.terminal", terminal)
    assert run(["report"]) == 0
    assert built == [Path("results/newer"), "the summary"]
    assert capsys.readouterr().out == "report: results/newer/report.html\n"
    assert run(["report", "results/older"]) == 0
    assert built[2:] == [Path("results/older"), "the summary"]


def test_help_loads_neither_numpy_nor_rich_nor_an_engine() -> None:
    program = (
        "import sys; from harness.cli import run; code = run(['up', '--help']);"
        "heavy = {'numpy', 'rich', 'torch', 'transformers', 'vllm', 'locust', 'gevent'};"
        "print(sorted(heavy & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_module_of_the_stack_needs_torch() -> None:
    program = (
        "import sys; import harness.stack.local, servers.models.tiny, servers.paged.launch;"
        "print('torch' in sys.modules, 'transformers' in sys.modules, 'vllm' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False False False\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_starting_stops_all_and_shows_no_traceback(
    number: signal.Signals, home: Path
) -> None:
    """A server that listens but is never healthy stands in for vLLM's long start."""
    program = (
        "import sys; from dataclasses import replace; import harness.stack.local as local;"
        "real = local.this_machine();"
        "slow = lambda plan, environment: [replace(one, command=(sys.executable, '-c',"
        " 'import time; time.sleep(600)')) for one in real.launches(plan, environment)];"
        "local.this_machine = lambda: replace(real, launches=slow);"
        "from harness.cli import main; main()"
    )
    port = str(free_port())
    process = subprocess.Popen(
        [sys.executable, "-c", program, "up", "--backends", "paged", "--paged-port", port],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    state = home / "stack" / "state.json"
    deadline = time.monotonic() + 30
    while not (state.is_file() and '"pid"' in state.read_text()):
        assert time.monotonic() < deadline, "nothing was started"
        time.sleep(0.02)
    process.send_signal(number)
    out, error = process.communicate(timeout=30)
    assert process.returncode == cli.INTERRUPTED == 130
    assert error.endswith("kvknee: interrupted\n")
    assert "Traceback" not in out + error
    assert not state.exists()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["up", "--help"]])
def test_output_onto_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "kvknee: the output cannot be written (No space left on device)\n"


def test_a_value_of_thousands_of_digits_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "config.json", "--batch", "9" * 5000]) == 2
    error = capsys.readouterr().err
    assert "is not a valid integer" in error
    assert len(error) < 200


def test_output_into_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m harness up --help | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("Usage:")


@pytest.mark.parametrize(
    "options",
    [
        ["--kv-bits", "4"],
        ["--kv-bits", "5"],
        ["--cache", "dynamic", "--sliding-window", "64"],
        ["--cache", "quantized", "--compile"],
        ["--reserve", "exact", "--compile"],
        ["--cache", "off", "--reserve", "pow2"],
        ["--cache", "sliding", "--batching", "static"],
        ["--compile", "--batching", "static"],
        ["--batching", "static", "--batch-size", "9", "--max-num-seqs", "8"],
    ],
    ids=" ".join,
)
def test_up_refuses_what_the_contiguous_server_refuses_in_its_words(
    options: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["up", "--home", str(tmp_path), *options]) == 2
    by_up = capsys.readouterr().err
    assert contiguous_main(["--model", "m", *options]) == 2
    by_server = capsys.readouterr().err
    assert by_up.partition(": ")[2] == by_server.partition(": ")[2]
    # nothing was made or started for it
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_a_combination_without_torch() -> None:
    """It would take seconds to import, and ``up`` is answered at once."""
    code = (
        "import sys; from harness.cli import run; code = run(['up', '--kv-bits', '4']);"
        "sys.exit(code if 'torch' not in sys.modules else 1)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60)
    assert ended.returncode == 2
