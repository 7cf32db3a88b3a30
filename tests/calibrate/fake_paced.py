"""A stand-in for the paced server: `python -m tests.calibrate.fake_paced`.

Plain asyncio; answers each request with the tokens that it asks for, at the pace on the
command line, and states when it wrote them. ``--lose`` leaves out every answer's last token
after having noted it, ``--fail`` answers 500, ``--mute`` ends before it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from typing import Any

from harness.plan.prompts import prompt_hash

_HEAD = b"HTTP/1.1 %d OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"


class Fake:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.truth: list[dict[str, Any]] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith(b"content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                await self.answer(head.split()[1].decode(), body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/truth":
            chunk(writer, _HEAD % (200, b"application/x-ndjson"), raw=True)
            for entry in self.truth:
                chunk(writer, json.dumps(entry).encode() + b"\n")
        elif path == "/truth/reset":
            self.truth = []
            chunk(writer, _HEAD % (200, b"application/json") + b"2\r\n{}\r\n", raw=True)
        elif self.options.fail:
            chunk(writer, _HEAD % (500, b"application/json") + b"2\r\n{}\r\n", raw=True)
        else:
            await self.stream(json.loads(body), writer)
        chunk(writer, b"0\r\n\r\n", raw=True)

    async def stream(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        received_s = time.monotonic()
        tokens: list[float] = []
        chunk(writer, _HEAD % (200, b"text/event-stream"), raw=True)
        await asyncio.sleep(float(self.options.ttft))
        count = asked["max_tokens"]
        for number in range(1, count + 1):
            if number > 1:
                await asyncio.sleep(float(self.options.itl))
            last = number == count
            event = {
                "choices": [{"text": "x", "finish_reason": "length" if last else None}],
                "usage": {"prompt_tokens": len(asked["prompt"]), "completion_tokens": number},
            }
            tokens.append(time.monotonic())
            if self.options.lose and number == 2:
                continue
            chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
        chunk(writer, b"data: [DONE]\n\n")
        self.truth.append(
            {
                "prompt_hash": prompt_hash(asked["prompt"]),
                "t_received_s": received_s,
                "token_s": tokens,
                "outcome": "ok",
            }
        )


def chunk(writer: asyncio.StreamWriter, data: bytes, *, raw: bool = False) -> None:
    writer.write(data if raw else b"%x\r\n%b\r\n" % (len(data), data))


async def serve(options: argparse.Namespace) -> None:
    fake = Fake(options)
    server = await asyncio.start_server(fake.talk, "127.0.0.1", 0)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft", default="0.01")
    parser.add_argument("--itl", default="0.002")
    for name in ("lose", "fail", "mute"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if options.mute:
        print("no port is left", file=sys.stderr)
        raise SystemExit(2)
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
