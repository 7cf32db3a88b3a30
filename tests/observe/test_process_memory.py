from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from harness.observe.exposition import PageReader
from harness.observe.process_memory import (
    TREE_RSS,
    ProcessEndedError,
    ProcessTree,
    TreeMemory,
    exposition,
)
from tests.observe.support import until

CHILD_BYTES = 48 * 2**20
#: a parent that keeps one child, which holds CHILD_BYTES; both end with their stdin
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import sys
held = bytes(1) * {CHILD_BYTES}
print("ready", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    if not process.stdin.closed:
        process.stdin.close()
    process.wait(10)
    process.stdout.close()


def test_memory_is_that_of_the_whole_tree(parent: subprocess.Popen[bytes]) -> None:
    memory = ProcessTree(parent.pid).memory()
    own = psutil.Process(parent.pid).memory_info().rss
    assert memory.processes == 2
    assert memory.rss_bytes >= own + CHILD_BYTES


def test_a_process_that_ended(parent: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree(parent.pid)
    assert parent.stdin is not None
    parent.stdin.close()
    # until it is waited for it is a zombie, which has no memory either
    until(lambda: psutil.Process(parent.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    with pytest.raises(ProcessEndedError, match=f"process {parent.pid} has ended"):
        tree.memory()
    parent.wait(10)
    with pytest.raises(ProcessEndedError):
        tree.memory()
    with pytest.raises(ProcessEndedError):
        ProcessTree(parent.pid).memory()


def test_it_is_journaled_as_prometheus_text() -> None:
    page = PageReader({TREE_RSS}).read(exposition(TreeMemory(12345, 2)))
    assert page[TREE_RSS][0].value == 12345
    assert ProcessTree(os.getpid()).memory().processes >= 1
