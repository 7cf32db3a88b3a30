"""What does each cache mode of the contiguous server cost, and what does it save?

    python scenarios/cache_modes.py                           all modes, one after the other
    python scenarios/cache_modes.py --modes dynamic,quantized-4 --prompt-tokens 2048
    python scenarios/cache_modes.py --url http://host:8001    a server of your own: see --help

Starts the server in one mode after the other, puts the same load on each, and prints TTFT,
TPOT and KV bytes with their ratios to the dynamic cache.
"""

from __future__ import annotations

import signal
import sys

from harness.modes.cli import run

if __name__ == "__main__":
    # a request to end is handled like Ctrl-C: what was started is stopped
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run())
