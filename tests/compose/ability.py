"""Whether a Docker engine of our own can run here, and what would have to be installed for it.

    python -m tests.compose.ability    the Debian packages to install, when that is allowed

A container engine is installed only where somebody wants it: in CI, or with
KVKNEE_TEST_DOCKER=1, with which a test that cannot run fails. With KVKNEE_TEST_DOCKER=0
neither happens.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: program -> the Debian package that has it
PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "tini": "tini",
    "debootstrap": "debootstrap",
    "slirp4netns": "slirp4netns",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
#: images, their layers and the build cache of the CPU stack, and some air
NEEDED_BYTES = 20 * 2**30
VARIABLE = "KVKNEE_TEST_DOCKER"


def asked(environment: Mapping[str, str]) -> bool | None:
    """True: it has to run; False: it must not; None: nobody says. Raises ValueError."""
    text = environment.get(VARIABLE, "")
    if text not in {"", "0", "1"}:
        raise ValueError(f"{VARIABLE}={text} is not valid; expected 0 or 1")
    return text == "1" if text else None


def why_not(environment: Mapping[str, str]) -> str | None:
    """Why no engine can run here; None when one can."""
    if asked(environment) is False:
        return f"{VARIABLE}=0"
    unfit = _unfit()
    missing = missing_packages()
    if unfit is None and missing:
        return (
            f"install the Debian packages {' '.join(missing)}; {VARIABLE}=1 make test-slow does it"
        )
    return unfit


def packages_to_install(environment: Mapping[str, str]) -> list[str]:
    """What is missing, where installing it is wanted and would help."""
    wanted = asked(environment)
    if wanted is None:
        wanted = bool(environment.get("CI"))
    return missing_packages() if wanted and _unfit() is None else []


def missing_packages() -> list[str]:
    """The packages whose programs are not there."""
    return sorted({PROGRAMS[name] for name in PROGRAMS if shutil.which(name) is None})


def _unfit() -> str | None:
    """What no package would change."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a Docker engine of our own needs Linux and root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun, which slirp4netns needs"
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < NEEDED_BYTES:
        return f"{free / 2**30:.0f} GiB are free in {tempfile.gettempdir()}, 20 are needed"
    return None


if __name__ == "__main__":
    try:
        print(" ".join(packages_to_install(os.environ)))
    except ValueError as error:
        print(f"kvknee: {error}", file=sys.stderr)
        sys.exit(2)
