#!/usr/bin/env bash
# Install the named Debian packages where that is allowed, else say which are missing.
#
# libnuma1 is needed to run vLLM on the CPU: without it this fails. prometheus is needed by
# some tests, which are skipped without it; with CI set, that fails too.
set -euo pipefail

present() {
    case $1 in
        libnuma1) python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ;;
        *) command -v "$1" >/dev/null ;;
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
    install=("${root[@]}" apt-get install --yes --no-install-recommends --quiet)
    "${install[@]}" "${missing[@]}" >/dev/null 2>&1 ||
        { "${root[@]}" apt-get update --quiet >/dev/null && "${install[@]}" "${missing[@]}" >/dev/null; } ||
        true
fi

mapfile -t missing < <(missing_of "${missing[@]}")
for package in "${missing[@]}"; do
    echo "kvknee: the Debian package $package is missing and could not be installed; install it: apt-get install $package" >&2
    if [ "$package" = libnuma1 ] || [ -n "${CI:-}" ]; then
        failed=1
    fi
done
exit "${failed:-0}"
