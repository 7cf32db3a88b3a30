#!/usr/bin/env bash
# Install the named Debian packages where that is allowed, else say which are missing.
#
# libnuma1 is needed to run vLLM on the CPU: without it this fails. prometheus is needed by
# some tests: with CI set, that fails too. Those of a container engine, which nobody names
# without being asked (tests/compose/ability.py), are needed by a test that is skipped without
# them; with KVKNEE_TEST_DOCKER=1 their lack fails. No service is started by an installation.
set -euo pipefail

present() {
    case $1 in
        docker.io) command -v dockerd >/dev/null && command -v docker >/dev/null ;;
        iproute2) command -v ip >/dev/null ;;
        util-linux) command -v nsenter >/dev/null ;;
        libnuma1) python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

# whether the lack of a package is an error
fatal() {
    case $1 in
        libnuma1) return 0 ;;
        docker.io | tini | debootstrap | slirp4netns | iproute2 | util-linux)
            [ "${KVKNEE_TEST_DOCKER:-}" = 1 ]
            ;;
        *) [ -n "${CI:-}" ] ;;
    esac
}

missing_of() {
    for package in "$@"; do
        present "$package" || echo "$package"
    done
}

mapfile -t missing < <(missing_of "$@")
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" != 0 ]; then
    root=(sudo -n)
fi
if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    echo "installing the Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # a package of another source that would have to go is a reason to leave it all as it is
    install=("${root[@]}" apt-get install --yes --no-install-recommends --no-remove --quiet)
    # Debian asks this program whether a service may start: a daemon is not what was wanted
    policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
    if [ ! -e "$policy" ]; then
        trap '"${root[@]}" rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee "$policy" >/dev/null
        "${root[@]}" chmod 755 "$policy"
    fi
    "${install[@]}" "${missing[@]}" >/dev/null 2>&1 ||
        { "${root[@]}" apt-get update --quiet >/dev/null && "${install[@]}" "${missing[@]}" >/dev/null; } ||
        true
fi

mapfile -t missing < <(missing_of "${missing[@]}")
for package in "${missing[@]}"; do
    echo "kvknee: the Debian package $package is missing and could not be installed; install it: apt-get install $package" >&2
    if fatal "$package"; then
        failed=1
    fi
done
exit "${failed:-0}"
