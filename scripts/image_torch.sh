#!/bin/sh
# Install the pinned torch into an image; the Dockerfiles call it with pip on the PATH.
#
#   image_torch.sh LIST   LIST has the line torch==VERSION+cpu
#   TORCH_BUILD           which build: +cpu, another local version such as +cu126, or empty for
#                         the one that PyPI has (CUDA)
#   TORCH_INDEX           address of an index that has this build, where pip's sources and
#                         PyTorch's own index do not; used for torch alone
set -eu
version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$1")
torch="torch==$version${TORCH_BUILD:-}"
if [ -n "${TORCH_INDEX:-}" ]; then
    exec pip install --no-deps --index-url "$TORCH_INDEX" "$torch"
fi
# other builds lie in indexes of PyTorch's own, whose addresses uv keeps
from_uv() {
    [ -n "${TORCH_BUILD:-}" ] && pip install 'uv>=0.7' &&
        uv pip install --python "$(command -v python)" --torch-backend "${TORCH_BUILD#+}" --no-deps "$torch" &&
        pip uninstall --yes uv
}
pip install --no-deps "$torch" || from_uv || {
    echo "kvknee: $torch is neither in pip's sources nor to be had from PyTorch's own index; set" \
        "TORCH_INDEX in .env to the address of an index that has it" >&2
    exit 1
}
