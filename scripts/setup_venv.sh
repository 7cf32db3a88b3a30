#!/usr/bin/env bash
# Make the virtual environment of local work, or do nothing when it is as it should be.
#
#   PYTHON              the interpreter to make it with (python3)
#   VENV                where (.venv)
#   KVKNEE_TORCH_INDEX  where torch's CPU build lies, for a machine that reaches neither a
#                       configured package source that has it nor PyTorch's own wheel index
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=${VENV:-.venv}
list=servers/paged/requirements-cpu.txt
stamp=$venv/.kvknee-installed

fail() {
    echo "kvknee: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is not there; name a Python 3.11 or newer: make PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old; name a Python 3.11 or newer: make PYTHON=..."

# all that decides what is installed; an equal stamp means that nothing is to be done
wanted=$({ "$python" --version; pwd; cat pyproject.toml "$list" scripts/setup_venv.sh; } | sha256sum)
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

echo "setting up $venv: some minutes, once"
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv" || fail "no virtual environment could be made; on Debian it needs the package python3-venv"
fi
rm -f "$stamp"
# pip's words are kept aside: among them are complaints about what the list leaves out on purpose
log=$venv/setup.log
: >"$log"
quietly() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input install "$@" >>"$log" 2>&1
}
give_up() {
    grep -v '^WARNING' "$log" | tail -n 15 >&2
    fail "$*; all of pip's output: $log"
}

# torch alone and first: its CPU builds lie in an index of their own. The configured sources
# come before it; uv knows its address.
torch=$(grep '^torch==' "$list")
echo "  $torch"
torch_from_uv() {
    quietly 'uv>=0.7' &&
        "$venv/bin/uv" pip install --python "$venv/bin/python" --torch-backend cpu --no-deps "$torch" >>"$log" 2>&1
}
if ! quietly --no-deps "$torch"; then
    if [ -n "${KVKNEE_TORCH_INDEX:-}" ]; then
        quietly --no-deps --index-url "$KVKNEE_TORCH_INDEX" "$torch" ||
            give_up "$torch could not be installed from KVKNEE_TORCH_INDEX=$KVKNEE_TORCH_INDEX"
    else
        echo "  not in the configured package sources: PyTorch's CPU index"
        torch_from_uv ||
            give_up "$torch is neither in the configured package sources nor to be had from PyTorch's CPU index; set KVKNEE_TORCH_INDEX to the address of an index that has it and run make again"
    fi
fi
echo "  vLLM for the CPU and what it imports"
quietly --no-deps --requirement "$list" || give_up "the packages of $list could not be installed"
echo "  kvknee, its servers and the tools"
quietly --constraint "$list" --editable '.[servers,dev]' || give_up "kvknee could not be installed"
echo "$wanted" >"$stamp"
