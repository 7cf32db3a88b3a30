"""Images under the tags that our files name, where no registry of images can be reached.

They are what the real ones are for our purposes: a Debian with Python under /usr/local, and
one with Prometheus. What this machine's pip is told (a certificate bundle, wheels in a local
folder) goes into the stand-in for Python, because a Dockerfile must not know of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.compose.engine import Engine
from tests.compose.files import ROOT

#: has Python 3.11, as the real base
_SUITE = "bookworm"
_PACKAGES = "ca-certificates,prometheus,python3,python3-venv,wget"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_WHEELS = "/opt/wheels"


def make_python(engine: Engine, tag: str) -> None:
    """Debian with Python as ``python``, as small as debootstrap makes it."""
    inside = engine.disk / "base"
    _bootstrap(engine, inside)
    root = engine.seen(inside)
    shutil.rmtree(root / "var/cache/apt/archives")
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    for name in ("python", "python3"):
        (root / "usr/local/bin" / name).symlink_to("/usr/bin/python3")
    settings = _pip_settings(root)
    changes = [f"--change=ENV {settings}"] if settings else []
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        done = subprocess.run(
            ["docker", "import", *changes, '--change=CMD ["python3"]', "-", tag],
            env=engine.environment,
            stdin=tar.stdout,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(root)


def make_prometheus(engine: Engine, tag: str, python_tag: str) -> None:
    """Debian's Prometheus with the entry point, user and folder of the official image."""
    context = engine.folder / "prometheus"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"FROM {python_tag}\n"
        "RUN mkdir /prometheus && chown nobody /prometheus\n"
        "USER nobody\n"
        "WORKDIR /prometheus\n"
        'ENTRYPOINT ["/bin/prometheus"]\n'
    )
    done = engine.run(
        ["docker", "build", "--tag", tag, str(context)],
        timeout_s=120,
        # the engine's own builder: no plugin is needed
        environment={"DOCKER_BUILDKIT": "0"},
    )
    assert done.returncode == 0, done.stdout


def _bootstrap(engine: Engine, root: Path) -> None:
    # in the box: what it mounts is gone with it, should it be cut off
    command = [
        *("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(root)),
    ]
    done = engine.run(engine.in_box(*command, everything=True), timeout_s=400)
    assert done.returncode == 0, done.stdout[-3000:]


def _pip_settings(root: Path) -> str:
    """Settings as ``NAME=value`` pairs; copies the files they name into ``root``."""
    settings = []
    if _CERTIFICATES.is_file():
        shutil.copy(_CERTIFICATES, root / str(_CERTIFICATES).lstrip("/"))
        settings.append(f"PIP_CERT={_CERTIFICATES}")
    wheels = _local_wheels()
    if wheels:
        target = root / _WHEELS.lstrip("/")
        target.mkdir(parents=True)
        for wheel in wheels:
            shutil.copy(wheel, target)
        settings.append(f"PIP_FIND_LINKS={_WHEELS}")
    return " ".join(settings)


def _local_wheels() -> list[Path]:
    """Wheels of the pinned torch in the folders where this machine's pip looks for wheels."""
    pins = (ROOT / "servers/paged/requirements-cpu.txt").read_text()
    pin = re.search(r"^torch==(.+)$", pins, re.MULTILINE)
    assert pin is not None
    pattern = f"torch-{pin[1]}-cp311-*.whl"
    return [wheel for folder in _find_links() for wheel in folder.glob(pattern)]


def _find_links() -> list[Path]:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
    )
    words = f"{done.stdout if done.returncode == 0 else ''} {os.environ.get('PIP_FIND_LINKS', '')}"
    return [path for path in map(Path, sorted(set(words.split()))) if path.is_dir()]
