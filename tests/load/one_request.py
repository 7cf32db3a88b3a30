"""One request of the client in a process of its own; prints its record. Arguments: the URL."""

from __future__ import annotations

import sys

from harness.records import wire_bytes
from tests.load.client_kit import make_ask, make_client, perform

TOKENS = 14

if __name__ == "__main__":
    client = make_client(sys.argv[1])
    sys.stdout.buffer.write(wire_bytes(perform(client, make_ask(output_tokens=TOKENS))))
    client.close()
