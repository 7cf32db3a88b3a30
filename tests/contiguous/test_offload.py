"""Work on threads that a stop lets go of."""

from __future__ import annotations

import asyncio
import threading

import pytest

from servers.contiguous.errors import RequestError
from servers.contiguous.offload import THREADS, Offload


def test_results_and_errors_come_back() -> None:
    async def scenario() -> None:
        offload = Offload()
        assert await offload.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await offload.run(divmod, 7, 0)
        assert not offload.busy
        offload.stop()

    asyncio.run(scenario())


def test_a_stop_ends_what_runs_and_what_waits() -> None:
    """All threads are taken and one more call waits: each gets 503, and so does a late one."""
    began, release = threading.Semaphore(0), threading.Event()

    def work() -> None:
        began.release()
        assert release.wait(60)

    async def scenario() -> None:
        offload = Offload()
        calls = [asyncio.create_task(offload.run(work)) for _ in range(THREADS + 1)]
        for _ in range(THREADS):
            assert await asyncio.to_thread(began.acquire, timeout=60)
        offload.stop()
        ended = await asyncio.gather(*calls, offload.run(work), return_exceptions=True)
        assert [getattr(end, "status", None) for end in ended] == [503] * (THREADS + 2)
        assert all(isinstance(end, RequestError) for end in ended)
        assert offload.busy
        release.set()

    asyncio.run(scenario())


def test_a_cancelled_call_leaves_nothing_behind() -> None:
    """Its client has left: the result of the thread is dropped without a word."""
    began, release = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert release.wait(60)
        raise ValueError("nobody asks any more")

    async def scenario() -> None:
        offload = Offload()
        call = asyncio.create_task(offload.run(work))
        assert await asyncio.to_thread(began.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        release.set()
        # the next call is answered as ever
        assert await offload.run(divmod, 7, 2) == (3, 1)
        offload.stop()

    asyncio.run(scenario())
