#!/bin/sh
# Install the pinned torch into an image; the Dockerfiles call it with pip on the PATH.
#
#   image_torch.sh LIST   LIST has the line torch==VERSION+cpu
#   TORCH_BUILD           which build: +cpu, another local version such as +cu126, or empty for
#                         the one that PyPI has (CUDA)
#   TORCH_INDEX           address of an index that has this build; used for torch alone
set -eu
version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$1")
torch="torch==$version${TORCH_BUILD:-}"
if [ -n "${TORCH_INDEX:-}" ]; then
    exec pip install --no-deps --index-url "$TORCH_INDEX" "$torch"
fi
pip install --no-deps "$torch" || {
    echo "kvknee: $torch is in none of pip's sources; set TORCH_INDEX in .env to the address of" \
        "PyTorch's wheel index (its install page shows it for your compute platform)" >&2
    exit 1
}
