"""One real stack for all tests of this folder: it takes most of a minute to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.local_stack import LocalStack, local_stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """vLLM and the contiguous server (static) with `tiny` and 16 MiB of KV cache each."""
    home = tmp_path_factory.mktemp("stack")
    options = ("--kv-budget", "16MiB", "--max-model-len", "2048", "--cache", "static")
    with local_stack(home, *options) as running:
        yield running
