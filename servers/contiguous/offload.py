"""Long work of requests (tokenizing, chat templates) on threads that a stop need not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from servers.contiguous.errors import shutting_down

P = ParamSpec("P")
T = TypeVar("T")

#: requests whose texts are worked on at the same time; the others wait
THREADS = 4


class Offload:
    """Used on one event loop; ``stop`` lets go of what still runs, since nothing can end it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="offload")
        self._running: set[Future[Any]] = set()
        self._stopped = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether a call still runs or waits for its thread."""
        return bool(self._running)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result; raises what it raises, and RequestError 503 once stopped."""
        if self._stopped.is_set():
            raise shutting_down()
        call = self._executor.submit(function, *args, **kwargs)
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        work = asyncio.wrap_future(call)
        stop = asyncio.ensure_future(self._stopped.wait())
        try:
            ends: set[asyncio.Future[Any]] = {work, stop}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise shutting_down()
            return work.result()
        finally:
            stop.cancel()
            # one that has not begun never will; of one that runs, the result is dropped
            work.cancel()

    def stop(self) -> None:
        """End every ``run`` with an error, now."""
        self._stopped.set()
        # those that have not begun are cancelled by their own ``run``
        self._executor.shutdown(wait=False)
