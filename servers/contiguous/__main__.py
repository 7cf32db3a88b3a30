"""``python -m servers.contiguous``."""

from __future__ import annotations

import sys

from servers.contiguous.cli import main

if __name__ == "__main__":
    sys.exit(main())
