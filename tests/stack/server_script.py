"""A stand-in for a server, run as a script: ``server_script.py PORT BEHAVIOUR``.

healthy     answers /health with 200
dies        writes two lines and ends with code 3
silent      runs, never listens
unhealthy   answers 503
stubborn    healthy, and ignores SIGTERM
family      healthy, with a child and a grandchild in sessions of their own
"""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
NEST = [
    sys.executable,
    "-c",
    f"import subprocess; subprocess.run({SLEEP!r}, start_new_session=True)",
]


def main() -> None:
    port, behaviour = int(sys.argv[1]), sys.argv[2]
    if behaviour == "dies":
        print("loading weights", flush=True)
        print("ValueError: not enough memory for the KV cache", flush=True)
        sys.exit(3)
    if behaviour == "silent":
        time.sleep(600)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "family":
        subprocess.Popen(NEST, start_new_session=True)
    status = 503 if behaviour == "unhealthy" else 200

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
