"""The verb ``serve``: one line for what is wrong, and a tidy end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import run
from tests.simulated.support import PATIENCE_S


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ttft", "soon"], "--ttft: 'soon' is not valid; expected seconds"),
        (["--itl", "normal:1"], "--itl: 'normal:1' is not valid"),
        (["--tokens-per-chunk", "0"], "--tokens-per-chunk: '0' is not valid"),
        (["--framing", "lf,cr"], "--framing: 'lf,cr' is not valid"),
        (["--framing", "html"], "--framing: 'html' is not valid; expected names of lf, crlf"),
        (["--fault", "fire=1"], "--fault: 'fire=1' is not valid; expected KIND=RATE"),
        (["--port", "70000"], "'--port': 70000 is not in the range"),
        (["--mode", "fast"], "'--mode': 'fast' is not"),
        (["--tls-key", "k.pem"], "--tls-key: 'k.pem' is not valid; expected --tls-cert"),
        (["--tls-cert", "/no/such.pem"], "--tls-cert: '/no/such.pem' is not valid"),
        (["--host", "198.51.100.1"], "--host 198.51.100.1 --port 0: cannot listen there"),
        (["--model", ""], "--model: '' is not valid"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "simulated", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["serve", "simulated", "--port", port]) == 2
    assert f"--port {port}: cannot listen there" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "simulated", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("/truth", "lognormal", "--fault", "Example", "stall", "role-first"):
        assert word in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_tidily_with_a_stream_open(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "serve", "simulated", "--port", "0"]
    errors = tmp_path / "stderr"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
            body = b'{"prompt": "a", "max_tokens": 1000, "stream": true}'
            peer.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            assert peer.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0
    assert errors.read_text() == ""
