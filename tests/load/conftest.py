from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from harness.load.stamped_socket import StampKeeper
from tests.load.client_kit import once
from tests.support.scripted_server import PATIENCE_S, ScriptedServer, text_chunk


@pytest.fixture(scope="session")
def kernel_stamps() -> Iterator[None]:
    """The kernel stamps packets: it starts to a moment after the first socket asks."""
    give_up_s = time.monotonic() + PATIENCE_S
    with StampKeeper() as keeper, ScriptedServer(lambda p, _: p.stream(text_chunk("x"))) as server:
        assert keeper.supported
        while once(server.url).clock != "kernel":
            assert time.monotonic() < give_up_s
        yield
