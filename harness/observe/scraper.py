"""The embedded scraper: a process of its own that reads metrics pages once a second.

It is a process so that reading a page takes no time from the loop that stamps tokens.
Its configuration, the API key included, comes as one line on its stdin and so stands in
no argument list, environment or log; it ends when its stdin closes, which happens also
when the load's process is killed. Targets are scraped on a fixed grid of the monotonic
clock, independently: a slow or dead one shifts neither itself nor the others. The raw
text is kept and parsed later. When a line cannot be written (disk full) it prints why
and ends with exit code 3.

``python -m harness.observe.scraper`` is what ``start`` runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import msgspec

from harness.errors import JournalError, without_key
from harness.observe.process_memory import ProcessEndedError, ProcessTree, exposition
from harness.observe.scraper_handle import (
    EXIT_JOURNAL,
    ScraperConfig,
    ScraperHandle,
    Target,
    start,
)
from harness.records import Scrape
from harness.rundir import GzipJournal, RunDir

__all__ = ["ScraperHandle", "start"]

#: larger than any server's page; a stream that never ends must not fill the memory
MAX_PAGE_BYTES = 32 * 2**20
_TEXT = "text/plain;version=0.0.4"
_ERROR_LENGTH = 200

Sampler = Callable[[], Awaitable[Scrape]]


def next_tick(now_s: float, interval_s: float) -> float:
    """The first point of the grid after ``now_s``; missed points are skipped, not made up."""
    return (math.floor(now_s / interval_s) + 1) * interval_s


async def scrape_page(
    client: httpx.AsyncClient,
    target: Target,
    config: ScraperConfig,
    clock: Callable[[], float] = time.monotonic,
) -> Scrape:
    """Read one page; whatever goes wrong is in the result."""
    start_s = clock()
    status: int | None = None
    text: str | None = None
    error: str | None = None
    try:
        # httpx' own timeouts are per read: a page that drips would never time out
        async with asyncio.timeout(config.timeout_s):
            status, body = await _get(client, target, config.api_key)
        if status == 200:
            text = without_key(body.decode("utf-8", "replace"), config.api_key)
        else:
            error = f"HTTP {status}"
    except TimeoutError:
        error = f"no answer within {config.timeout_s:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as problem:
        error = without_key(_described(problem), config.api_key)
    end_s = clock()
    return Scrape(
        t_s=(start_s + end_s) / 2, took_s=end_s - start_s, status=status, text=text, error=error
    )


async def _get(client: httpx.AsyncClient, target: Target, api_key: str | None) -> tuple[int, bytes]:
    # no compression: it would cost the server under test more than the loopback saves
    headers = {"Accept": _TEXT, "Accept-Encoding": "identity"}
    if target.with_key and api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    body = bytearray()
    async with client.stream("GET", target.url, headers=headers) as response:
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > MAX_PAGE_BYTES:
                raise ValueError(f"page larger than {MAX_PAGE_BYTES} bytes")
    return response.status_code, bytes(body)


def _described(problem: Exception) -> str:
    kinds = {
        httpx.ConnectError: "cannot connect",
        httpx.TimeoutException: "timed out",
        httpx.RemoteProtocolError: "broken answer",
        httpx.ReadError: "connection lost",
    }
    for kind, text in kinds.items():
        if isinstance(problem, kind):
            return f"{text}: {problem}"[:_ERROR_LENGTH].rstrip(": ")
    return f"{type(problem).__name__}: {problem}"[:_ERROR_LENGTH]


async def sample_process(tree: ProcessTree, clock: Callable[[], float] = time.monotonic) -> Scrape:
    """Measure one process tree; whatever goes wrong is in the result."""
    start_s = clock()
    text: str | None = None
    error: str | None = None
    try:
        text = exposition(tree.memory())
    except ProcessEndedError as problem:
        error = str(problem)
    end_s = clock()
    return Scrape(t_s=(start_s + end_s) / 2, took_s=end_s - start_s, text=text, error=error)


async def _repeat(
    sampler: Sampler, journal: GzipJournal, interval_s: float, stopped: asyncio.Event
) -> None:
    """Sample at once and then on every point of the grid until ``stopped``."""
    while not stopped.is_set():
        journal.append(await sampler())
        wait_s = next_tick(time.monotonic(), interval_s) - time.monotonic()
        try:
            async with asyncio.timeout(wait_s):
                await stopped.wait()
        except TimeoutError:
            continue


async def scrape_until(config: ScraperConfig, stopped: asyncio.Event) -> None:
    """Scrape all targets until ``stopped``; raises JournalError when a journal fails."""
    run = RunDir(Path(config.run_dir))
    # no proxy from the environment may stand between the scraper and 127.0.0.1
    client = httpx.AsyncClient(trust_env=False, timeout=config.timeout_s, follow_redirects=False)
    journals: list[GzipJournal] = []

    def clock() -> float:
        return time.monotonic() + config.shift_s

    def add(name: str, sampler: Sampler) -> None:
        journals.append(GzipJournal(run.scrape_path(name)))
        group.create_task(_repeat(sampler, journals[-1], config.interval_s, stopped))

    try:
        async with client, asyncio.TaskGroup() as group:
            for target in config.targets:
                add(target.name, partial(scrape_page, client, target, config, clock))
            for process in config.processes:
                add(process.name, partial(sample_process, ProcessTree(process.pid), clock))
            # without any target it lives until it is stopped, as with one
            await stopped.wait()
    except ExceptionGroup as problems:
        failed = problems.subgroup(JournalError)
        if failed is None:
            raise
        raise JournalError(str(failed.exceptions[0])) from problems
    finally:
        for journal in journals:
            journal.close()


async def _serve(config: ScraperConfig) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_end() -> None:
        # not sys.stdin: its lock, held by this thread, would trip the interpreter's end
        while os.read(0, 4096):
            pass
        # the loop has closed already when a journal failed
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    await scrape_until(config, stopped)


def main() -> int:
    """Read the configuration from stdin, scrape until stdin closes; the exit code."""
    try:
        config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ScraperConfig)
    except msgspec.MsgspecError as error:
        sys.stdout.write(f"scraper: bad configuration: {error}\n")
        return 2
    try:
        asyncio.run(_serve(config))
    except JournalError as error:
        sys.stdout.write(f"scraper: {error}\n")
        return EXIT_JOURNAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
