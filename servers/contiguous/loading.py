"""Loads a model and its tokenizer, and refuses what a plain contiguous cache cannot hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
)

from harness.errors import ModelConfigError, OptionError
from servers.contiguous.layout import odd_layers
from servers.contiguous.settings import Settings


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run."""

    model: Any
    tokenizer: Any
    device: torch.device
    eos_ids: frozenset[int]
    #: rows of the embedding: token ids must be below it
    vocab_size: int
    max_model_len: int


def load(settings: Settings) -> LoadedModel:
    """Load what the settings name; raises ModelConfigError or OptionError, one line each."""
    check_folder(settings.model)
    device = choose_device(settings.device)
    config = _read(AutoConfig, settings.model, "config")
    refuse_unsupported(config, settings.model, settings.cache)
    max_model_len = choose_max_model_len(settings.max_model_len, config)
    tokenizer = _read(AutoTokenizer, settings.model, "tokenizer")
    model = _read(
        AutoModelForCausalLM,
        settings.model,
        "weights",
        dtype=settings.dtype if settings.dtype == "auto" else getattr(torch, settings.dtype),
        attn_implementation="sdpa",
    )
    return LoadedModel(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        device=device,
        eos_ids=eos_token_ids(model, tokenizer),
        vocab_size=model.get_input_embeddings().weight.shape[0],
        max_model_len=max_model_len,
    )


def check_folder(model: str) -> None:
    """Raises OptionError for a path that is no folder, before the hub is asked for it."""
    path = Path(model).expanduser()
    looks_like_path = path.is_absolute() or model.startswith(".") or model.count("/") > 1
    if looks_like_path and not path.is_dir():
        raise OptionError("--model", model, "a folder that exists, or a model's id on the hub")


def choose_device(name: str) -> torch.device:
    """``auto`` takes the GPU when there is one; raises OptionError for a GPU that is not there."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise OptionError("--device", name, "cpu here: torch sees no CUDA device")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def refuse_unsupported(config: Any, model: str, cache: str = "static") -> None:
    """Raises ModelConfigError naming what the cache policy cannot do with this model."""
    problem = _unsupported(config, cache)
    if problem is not None:
        raise ModelConfigError(
            f"--model: {model} {problem}; the contiguous server serves decoder-only models "
            f"with plain full attention{_WINDOWS.get(cache, '')}"
        )


#: what else the policies serve, or which one does
_WINDOWS = {
    "sliding": " or sliding windows",
    "off": " or sliding windows",
    "static": ", and with --cache sliding or off those with sliding windows",
    "dynamic": ", and with --cache sliding or off those with sliding windows",
    "quantized": ", and with --cache sliding or off those with sliding windows",
}


def _unsupported(config: Any, cache: str) -> str | None:
    if getattr(config, "is_encoder_decoder", False):
        return "is an encoder-decoder model"
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"(model type {config.model_type}) is no causal language model"
    text = config.get_text_config(decoder=True)
    if getattr(text, "kv_lora_rank", None):
        return "uses multi-head latent attention (kv_lora_rank)"
    if getattr(text, "alibi", False):
        return "uses ALiBi position biases (alibi)"
    odd = odd_layers(config, windows=cache in ("sliding", "off"))
    return f"has cache layers of type {', '.join(odd)}" if odd else None


def choose_max_model_len(wanted: int | None, config: Any) -> int:
    """The model's own limit, or less when asked; raises OptionError beyond it."""
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit is None:
        if wanted is None:
            raise OptionError(
                "--max-model-len", None, "a number: the model's config states no limit"
            )
        return wanted
    if wanted is not None and wanted > limit:
        raise OptionError("--max-model-len", wanted, f"at most {limit}, the model's own limit")
    return int(wanted or limit)


def eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a text: those of the generation config, and the tokenizer's own."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    listed = ids if isinstance(ids, list) else [ids]
    return frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)


def _read(loader: Any, model: str, what: str, **options: Any) -> Any:
    try:
        return loader.from_pretrained(model, **options)
    except Exception as error:
        # the loaders raise whatever their files make them raise, in many lines
        first = str(error).strip().split("\n", 1)[0]
        raise ModelConfigError(
            f"--model: {model}: its {what} could not be read ({first})"
        ) from error
