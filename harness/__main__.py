"""``python -m harness`` is the command ``kvknee``."""

from harness.cli import main

if __name__ == "__main__":
    main()
