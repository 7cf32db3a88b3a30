"""A hub id is found, or refused in one line, before anything starts; the hub is played here."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.stack.hub import find_config
from harness.stack.local import up
from harness.stack.options import UpOptions
from harness.stack.state import read_state
from tests.stack.conftest import Bench, Shown
from tests.support.local_stack import free_port, kvknee

#: 2 (K and V) x 2 layers x 1 KV head x 8 x 2 B = 64 B per token
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
}
COMMIT = "0" * 40
Headers = dict[str, str]


@contextmanager
def hub(status: int, headers: Headers, body: bytes = b"") -> Iterator[tuple[str, list[str]]]:
    """A hub that answers everything so; gives its address and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(home: Path, endpoint: str, **more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **more}


def cache(home: Path, *files: str) -> Path:
    """A cached revision of org/model that holds these files."""
    folder = home / "hub" / "models--org--model"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).write_text(json.dumps(CONFIG))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "the hub has no model org/model (a private one needs HF_TOKEN)"),
        (401, "", "the hub does not give org/model (HTTP 401)"),
        (403, "GatedRepo", "org/model is gated; accept its terms on the hub and set HF_TOKEN"),
        (404, "EntryNotFound", "org/model has no config.json on the hub"),
        (500, "", "the hub does not give org/model (HTTP 500)"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    status: int, code: str, words: str, tmp_path: Path
) -> None:
    with (
        hub(status, {"X-Error-Code": code} if code else {}) as (url, asked),
        pytest.raises(UsageError) as caught,
    ):
        find_config("org/model", environment(tmp_path, url))
    assert str(caught.value).startswith(f"--model: {words}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    about_the_model = [path for path in asked if "/org/model/" in path]
    assert about_the_model == ["/org/model/resolve/main/config.json"], "once, without retries"


def test_a_model_of_the_hub_gives_its_config(tmp_path: Path) -> None:
    body = json.dumps(CONFIG).encode()
    headers = {"ETag": '"abc"', "X-Repo-Commit": COMMIT}
    with hub(200, headers, body) as (url, _):
        path = find_config("org/model", environment(tmp_path, url))
    assert json.loads(path.read_bytes()) == CONFIG
    assert tmp_path in path.parents


def test_a_cached_model_needs_no_hub(tmp_path: Path) -> None:
    snapshot = cache(tmp_path, "config.json", "model-00001-of-00001.safetensors")
    nobody = f"http://127.0.0.1:{free_port()}"
    assert find_config("org/model", environment(tmp_path, nobody)) == snapshot / "config.json"


@pytest.mark.parametrize(
    ("more", "why"),
    [({}, "ConnectError"), ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set")],
)
@pytest.mark.parametrize("files", [(), ("config.json",)])
def test_without_a_network_a_config_alone_is_not_enough(
    files: tuple[str, ...], more: Headers, why: str, tmp_path: Path
) -> None:
    cache(tmp_path, *files)
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UsageError) as caught:
        find_config("org/model", environment(tmp_path, nobody, **more))
    assert str(caught.value) == (
        "--model: org/model is neither a folder nor in the hub's cache with its weights, and the "
        f"hub cannot be reached ({why}); name tiny, smollm2 or a model's folder"
    )


def test_a_silent_hub_is_given_up(tmp_path: Path) -> None:
    """The process that asks is ended: no process can start Python within a microsecond."""
    with pytest.raises(UsageError, match=r"cannot be reached \(no answer within 1e-06 s\)"):
        find_config("org/model", environment(tmp_path, "http://127.0.0.1:9"), timeout_s=1e-6)


@pytest.mark.parametrize("name", ["org/a--b", "org/model.git"])
def test_what_the_hub_would_never_accept(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--model: {name} is no valid hub id"):
        find_config(name, environment(tmp_path, "http://127.0.0.1:9"))


def test_a_lookup_that_breaks_says_its_last_line(tmp_path: Path) -> None:
    broken = environment(tmp_path, "http://127.0.0.1:9", HF_HUB_ETAG_TIMEOUT="soon")
    with pytest.raises(UsageError, match=r"cannot be looked up on the hub \(ValueError: ") as error:
        find_config("org/model", broken)
    assert "\n" not in str(error.value)


def asking(bench: Bench, endpoint: str) -> Callable[..., object]:
    runtime = bench.runtime()
    outside = environment(bench.home.parent / "hf", endpoint)
    options = UpOptions(
        home=bench.home,
        model="org/model",
        paged_port=bench.ports["paged"],
        contiguous_port=bench.ports["contiguous"],
        start_timeout_s=30.0,
    )
    return lambda progress, **changes: up(
        replace(options, **changes), progress, replace(runtime, environment=outside)
    )


def test_nothing_starts_for_a_model_that_is_not_there(bench: Bench, progress: Shown) -> None:
    with (
        hub(404, {"X-Error-Code": "RepoNotFound"}) as (url, _),
        pytest.raises(UsageError, match="the hub has no model org/model"),
    ):
        asking(bench, url)(progress)
    assert progress.updates == ["looking for the model org/model"]
    assert not (bench.home / "logs").exists()
    assert read_state(bench.home) is None


def test_a_model_of_the_hub_is_checked_like_a_folder(bench: Bench, progress: Shown) -> None:
    body = json.dumps(CONFIG).encode()
    with hub(200, {"ETag": '"abc"', "X-Repo-Commit": COMMIT}, body) as (url, _):
        with pytest.raises(UsageError, match="at most 4096, the model's own limit"):
            asking(bench, url)(progress, max_model_len=4097)
        asking(bench, url)(progress)
    state = read_state(bench.home)
    assert state is not None
    assert [one.kv_bytes_per_token for one in state.backends] == [64, 64]


@pytest.mark.engines
def test_the_command_says_it_in_one_line_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    ports = ("--paged-port", str(free_port()), "--contiguous-port", str(free_port()))
    with hub(404, {"X-Error-Code": "RepoNotFound"}) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        done = kvknee(tmp_path, "up", "--model", "nosuch/model", *ports)
    assert done.returncode == 2
    assert done.stderr == (
        "kvknee: --model: the hub has no model nosuch/model (a private one needs HF_TOKEN); "
        "name tiny, smollm2, a model's folder, or another hub id\n"
    )
