"""Make a model: ``python -m servers.models tiny|smollm2 FOLDER``.

The folder appears whole or not at all: the files are written beside it and moved there.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from servers.models.smollm2 import MissingWeights, make_smollm2
from servers.models.tiny import make_tiny

MAKERS: Mapping[str, Callable[[Path], None]] = {"tiny": make_tiny, "smollm2": make_smollm2}


def make_model(name: str, folder: Path) -> None:
    """Make the model ``name`` as ``folder``; does nothing when it is there already."""
    if (folder / "config.json").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        MAKERS[name](draft)
        # readable for a server that runs as another user, whatever the umask
        draft.chmod(0o755)
        for path in draft.iterdir():
            path.chmod(0o644)
        _move(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _move(draft: Path, folder: Path) -> None:
    """Rename ``draft``; a process that was faster made the same files, so its are kept."""
    try:
        draft.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise


def main(arguments: list[str]) -> int:
    """Exit code 0 when the model is there, 1 when it could not be made, 2 for bad input."""
    if len(arguments) != 2 or arguments[0] not in MAKERS:
        print(f"usage: python -m servers.models {'|'.join(MAKERS)} FOLDER", file=sys.stderr)
        return 2
    try:
        make_model(arguments[0], Path(arguments[1]))
    except (MissingWeights, ImportError, OSError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
