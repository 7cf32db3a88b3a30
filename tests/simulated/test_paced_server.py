"""The paced server over real sockets: what a client gets is what the truth states."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from harness.load.dialect import EndpointName
from harness.plan.prompts import prompt_hash
from servers.simulated.faults import MIDWAY
from tests.load.client_kit import make_ask, make_client, perform
from tests.simulated.support import PATIENCE_S, ask, running, truth

QUICK = ("--ttft", "20ms", "--itl", "5ms")


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_client_gets_the_tokens_of_the_truth(endpoint: EndpointName) -> None:
    with running("--ttft", "uniform:5ms,30ms", "--itl", "exp:4ms", "--seed", "5") as url:
        records = ask(url, 12, endpoint=endpoint, times=4)
        lines = truth(url)
        assert truth(url, since=3) == lines[3:]
    assert [record.outcome for record in records] == ["ok"] * 4
    for record, line in zip(records, lines, strict=True):
        assert line["outcome"] == "ok"
        assert record.prompt_tokens == line["prompt_tokens"]
        assert line["prompt_hash"] == prompt_hash(
            (1, 2, 3, 4) if endpoint == "completions" else "hello"
        )
        assert line["tokens"] == [1] * 12
        assert record.token_n is None
        assert len(record.token_us) == len(line["token_s"]) == 12
        times = line["token_s"]
        assert times == sorted(times)
        # never before it was due, nor before it was asked for
        late_s = [at - due for at, due in zip(times, line["t_due_s"], strict=True)]
        assert min(late_s) > -1e-6
        assert line["t_received_s"] < times[0]


def test_bursts_arrive_as_they_were_sent() -> None:
    with running(*QUICK, "--tokens-per-chunk", "choice:1,3,4,2") as url:
        (record,) = ask(url, 13)
        (line,) = truth(url)
    assert line["tokens"] == [1, 3, 4, 2, 1, 2]
    assert len(record.token_us) == 6
    assert record.output_tokens == 13


def test_the_seed_makes_the_pace() -> None:
    """Due times from the reception on are the same, whatever the machine did."""
    gaps = []
    for seed in ("1", "1", "2"):
        options = ("--ttft", "normal:20ms,5ms", "--itl", "uniform:1ms,9ms", "--seed", seed)
        with running(*options) as url:
            ask(url, 8)
            (line,) = truth(url)
        gaps.append([round(due - line["t_received_s"], 7) for due in line["t_due_s"]])
    assert gaps[0] == gaps[1] != gaps[2]


@pytest.mark.parametrize(
    "framing",
    [
        "crlf",
        "cr",
        "no-space",
        "comments",
        "role-first",
        "multi-line",
        "split",
        "cr,no-space,comments,role-first,multi-line,split",
    ],
)
def test_every_framing_is_read_to_the_last_token(framing: str) -> None:
    with running(*QUICK, "--framing", framing) as url:
        records = ask(url, 6, times=2) + ask(url, 6, endpoint="chat")
        lines = truth(url)
    for record, line in zip(records, lines, strict=True):
        assert (record.outcome, record.output_tokens, len(record.token_us)) == ("ok", 6, 6)
        assert (line["outcome"], line["tokens"]) == ("ok", [1] * 6)


@pytest.mark.parametrize(
    ("options", "connections"),
    [
        (["--body", "chunked"], 1),
        (["--body", "content-length"], 1),
        (["--body", "content-length", "--framing", "comments,role-first,crlf,multi-line"], 1),
        (["--body", "close-delimited"], 3),
        (["--connection", "close"], 3),
        (["--continue-100"], 1),
    ],
)
def test_every_way_to_end_a_body(options: list[str], connections: int) -> None:
    with running(*QUICK, *options) as url:
        records = ask(url, 5, times=3)
        lines = truth(url)
    assert [record.outcome for record in records] == ["ok"] * 3
    # a new connection has a time to connect
    assert sum(record.connect_s is not None for record in records) == connections
    assert [line["tokens"] for line in lines] == [[1] * 5] * 3


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("reset", "reset"),
        ("stall", "timeout"),
        ("truncate", "truncated"),
        ("in-band-error", "in_band_error"),
        ("garbage", "malformed"),
        ("429", "rejected"),
        ("503", "rejected"),
        ("redirect", "http_error"),
        ("empty", "short_output"),
        ("slow-headers", "ok"),
    ],
)
def test_every_fault_is_what_it_says(kind: str, outcome: str) -> None:
    with running(*QUICK, "--fault", f"{kind}=1") as url:
        records = ask(url, 6, times=2, idle_timeout_s=1.5)
        lines = truth(url)
    assert [record.outcome for record in records] == [outcome] * 2
    for record, line in zip(records, lines, strict=True):
        assert line["fault"] == kind
        assert line["outcome"] == ("ok" if kind == "slow-headers" else kind)
        assert len(record.token_us) == len(line["token_s"])
        if kind in MIDWAY:
            assert 1 <= len(line["token_s"]) < 6


def test_one_request_in_some_gets_the_fault() -> None:
    with running("--ttft", "1ms", "--itl", "1ms", "--fault", "429=0.3", "--seed", "4") as url:
        records = ask(url, 2, times=40)
        lines = truth(url)
    refused = [record.outcome == "rejected" for record in records]
    assert refused == [line["fault"] == "429" for line in lines]
    # 40 x 0.3 = 12 +- 4 x 2.9
    assert 1 <= sum(refused) <= 23


def test_a_client_that_leaves_is_told_apart() -> None:
    with running("--ttft", "5ms", "--itl", "5ms") as url:
        with httpx.stream("POST", f"{url}/v1/completions", json=asked(500)) as answer:
            next(answer.iter_bytes())
        ask(url, 2)
        left = next(line for line in truth(url) if line["outcome"] != "ok")
    assert left["outcome"] == "disconnected"
    assert 1 <= len(left["token_s"]) < 500


def asked(max_tokens: int, **more: object) -> dict[str, object]:
    return {"model": "m", "prompt": "hi", "max_tokens": max_tokens, "stream": True, **more}


def test_an_answer_that_is_not_streamed() -> None:
    with running(*QUICK) as url:
        plain = httpx.post(f"{url}/v1/completions", json=asked(3, stream=False)).json()
        chat = httpx.post(
            f"{url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2},
        ).json()
        lines = truth(url)
    assert plain["choices"][0]["text"] == "abc"
    assert plain["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    # written once, when the last token was due: ttft + 2 gaps
    assert [line["tokens"] for line in lines] == [[3], [2]]
    assert lines[0]["token_s"][0] - lines[0]["t_received_s"] >= 0.030 - 1e-6


def test_pages_and_what_is_refused() -> None:
    with running("--max-model-len", "100") as url, httpx.Client(base_url=url) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/version").json()["mode"] == "paced"
        entry = http.get("/v1/models").json()["data"][0]
        assert (entry["id"], entry["max_model_len"]) == ("m", 100)
        assert http.post("/tokenize", json={"prompt": "az"}).json()["tokens"] == [97, 122]
        assert "simulated_requests_running 0" in http.get("/metrics").text
        assert http.get("/nowhere").status_code == 404
        assert http.get("/v1/completions").status_code == 405
        for body, words in (
            (asked(99), "maximum context length is 100"),
            (asked(0), "max_tokens: at least 1"),
            ({**asked(2), "model": "other"}, "'other' does not exist"),
            ({**asked(2), "prompt": []}, "prompt: empty"),
            ({**asked(2), "prompt": [-1]}, ">= 0"),
            ({**asked(2), "prompt": {"a": 1}}, "Expected"),
            ({**asked(2), "n": 2}, "one answer"),
        ):
            answer = http.post("/v1/completions", json=body)
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]
        assert http.post("/v1/completions", content=b"{").status_code == 400
        assert http.get("/truth?since=x").status_code == 400
        assert truth(url) == []


def test_the_truth_can_be_forgotten() -> None:
    with running(*QUICK) as url:
        ask(url, 2, times=2)
        assert httpx.post(f"{url}/truth/reset").json() == {"forgotten": 2}
        ask(url, 2)
        (line,) = truth(url)
    # numbers go on: a fault stays with its request
    assert line["number"] == 2


def test_pipelined_requests_are_answered_in_turn() -> None:
    with running(*QUICK) as url:
        port = int(url.rpartition(":")[2])
        body = json.dumps(asked(3)).encode()
        one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
            peer.sendall((one + b"\r\n" + body) * 2 + last)
            answer = b"".join(iter(lambda: peer.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(b"[DONE]") == 2


def test_what_is_not_http_is_refused_and_the_server_lives() -> None:
    with running(*QUICK) as url:
        port = int(url.rpartition(":")[2])
        for bad in (b"\x16\x03\x01 hello\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
                peer.sendall(bad)
                assert peer.recv(65536).startswith(b"HTTP/1.1 400")
        assert ask(url, 2)[0].outcome == "ok"


def test_a_client_that_expects_100_continue_gets_it() -> None:
    with running(*QUICK) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as peer:
            peer.sendall(
                b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                b"Content-Length: 15\r\nConnection: close\r\n\r\n"
            )
            assert peer.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            peer.sendall(b'{"prompt": "a"}')
            answer = b"".join(iter(lambda: peer.recv(65536), b""))
    assert b'"tokens":[97]' in answer


def test_a_slow_reader_gets_every_byte() -> None:
    """More than the kernel buffers: the rest waits, and nothing is lost or mixed up."""
    with running("--ttft", "0", "--itl", "0", "--tokens-per-chunk", "4096") as url:
        port = int(url.rpartition(":")[2])
        tokens = 100_000
        body = json.dumps(asked(tokens, return_token_ids=True)).encode()
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.settimeout(PATIENCE_S)
            peer.connect(("127.0.0.1", port))
            peer.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            # the server stays at work for others meanwhile
            assert ask(url, 2)[0].outcome == "ok"
            answer = b"".join(iter(lambda: peer.recv(65536), b""))
        line = next(line for line in truth(url) if sum(line["tokens"]) == tokens)
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert answer.count(b"data: {") == len(line["tokens"]) == -(-tokens // 4096)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_tokens_under_tls_are_those_of_the_truth(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    context = ssl.create_default_context(cafile=str(cert))
    with running(*QUICK, "--tls-cert", str(cert), "--tls-key", str(key)) as url:
        assert url.startswith("https://")
        client = make_client(url, tls=context, token_ids=True)
        records = [perform(client, make_ask(output_tokens=6, seq=seq)) for seq in range(3)]
        client.close()
        answer = httpx.get(f"{url}/truth", verify=context)
    assert [record.outcome for record in records] == ["ok"] * 3
    assert sum(record.connect_s is not None for record in records) == 1
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [len(line["token_s"]) for line in lines] == [len(r.token_us) for r in records] == [6] * 3
