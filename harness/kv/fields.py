"""Checked reading of a model's config: many names for one fact, one clear error.

Configs of different model families call the same thing by different names, leave it out,
or set it to null. A null under every name means "not set"; a fact that is absent
altogether falls back to the family's own default, which is then listed, so that a plan
can say which of its factors the config did not state. Two names that are both set must
agree: a contradiction is refused by name, never resolved by preference.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.errors import ModelConfigError, printable, shortened

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "n_kv_heads",
    "kv_n_heads",
    "num_attention_groups",
)
HEAD_DIM = ("head_dim", "d_kv", "hidden_size_per_head", "attention_head_dim", "kv_channels")
#: the smallest of those that are set is the longest context, as vLLM reads them; where
#: ``model_max_length`` is set, that one counts
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
#: no model is near these: a number beyond them is a mistake, and would cost hours or memory
MOST_LAYERS = 10_000
MOST_SIZE = 2**20
#: lengths may say "no limit" by an enormous number: transformers writes 10**30 for that
MOST_LENGTH = 2**100
_LIMITS = {
    **dict.fromkeys((*LAYERS, "decoder_layers", "encoder_layers"), MOST_LAYERS),
    **dict.fromkeys(("num_decoder_layers", "num_transformer_layers"), MOST_LAYERS),
    **dict.fromkeys((*POSITIONS, "model_max_length"), MOST_LENGTH),
    **dict.fromkeys(("original_max_position_embeddings", "attention_chunk_size"), MOST_LENGTH),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), MOST_LENGTH),
    **dict.fromkeys(("vocab_size", "padded_vocab_size", "max_source_positions"), 2**30),
}


def short(value: object) -> str:
    """``value`` as an error shows it: a number of 300 digits stays one line."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):
        return "a value too large to show"
    return shown if len(shown) <= 40 else f"{shown[:36]}..."


class Fields:
    """One JSON object of a config, read with checks; every error names the field."""

    def __init__(
        self,
        config: Mapping[str, object],
        where: str = "config",
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self.config = config
        # a name in it may be the file's own
        self.where = shortened(printable(where), 120)
        self.defaults = defaults or {}
        #: facts that came from the family's defaults, as ``name value``
        self.used_defaults: list[str] = []
        #: what else a reader of the plan should know
        self.notes: list[str] = []

    def has(self, *names: str) -> bool:
        """Whether one of the names is set (present and not null) in the config itself."""
        return any(self.config.get(name) is not None for name in names)

    def raw(self, *names: str) -> tuple[str, object] | None:
        """The first of ``names`` that is set, with its value, else the family's default."""
        present = [name for name in names if name in self.config]
        for name in present:
            if self.config[name] is not None:
                return name, self.config[name]
        if present:
            return None
        for name in names:
            value = self.defaults.get(name)
            if value is not None:
                self._note_default(name, value)
                return name, value
        return None

    def integer(self, *names: str, minimum: int = 1) -> int | None:
        """The whole number under ``names``; None when none is set.

        Raises ModelConfigError when a value is no whole number, is below ``minimum`` or
        beyond what any model has, or two of the names contradict each other.
        """
        found = {
            name: self._checked(name, self.config[name], minimum)
            for name in names
            if self.config.get(name) is not None
        }
        if len(set(found.values())) > 1:
            pairs = " but ".join(f"{name} is {value}" for name, value in found.items())
            raise ModelConfigError(f"{self.where}: fields contradict each other: {pairs}")
        if found:
            return next(iter(found.values()))
        fallback = self.raw(*names)
        return None if fallback is None else self._checked(*fallback, minimum)

    def need(self, what: str, *names: str, minimum: int = 1) -> int:
        """As ``integer``, but absence is a ModelConfigError that says ``what`` is missing."""
        value = self.integer(*names, minimum=minimum)
        if value is None:
            raise ModelConfigError(
                f"{self.where}: {what} is missing; expected one of {', '.join(names)}"
            )
        return value

    def text(self, *names: str) -> str | None:
        """The string under ``names``; None when none is set; raises ModelConfigError."""
        found = self.raw(*names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, str):
            raise ModelConfigError(f"{self.where}: {name} is {short(value)}; expected a text")
        return value

    def flag(self, name: str, absent: bool = False) -> bool:
        """The true or false under ``name``; raises ModelConfigError for anything else."""
        found = self.raw(name)
        if found is None:
            return absent
        if not isinstance(found[1], bool):
            raise ModelConfigError(
                f"{self.where}: {name} is {short(found[1])}; expected true or false"
            )
        return found[1]

    def names(self, *names: str) -> list[str] | None:
        """The list of strings under ``names``; None when none is set."""
        found = self.raw(*names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelConfigError(
                f"{self.where}: {name} is {short(value)}; expected a list of texts"
            )
        return value

    def integers(self, *names: str) -> list[int] | None:
        """The list of whole numbers (0 or more) under ``names``; None when none is set."""
        found = self.raw(*names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, list):
            raise ModelConfigError(
                f"{self.where}: {name} is {short(value)}; expected a list of numbers"
            )
        return [self._checked(name, item, 0) for item in value]

    def sub(self, name: str) -> Fields | None:
        """The object under ``name``; None when it is not set; raises ModelConfigError."""
        found = self.raw(name)
        if found is None:
            return None
        if not isinstance(found[1], Mapping):
            raise ModelConfigError(f"{self.where}: {name} is {short(found[1])}; expected an object")
        return Fields(found[1], f"{self.where}.{name}")

    def _checked(self, name: str, value: object, minimum: int) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        if isinstance(number, bool) or not isinstance(number, int) or number < minimum:
            raise ModelConfigError(
                f"{self.where}: {name} is {short(value)}; "
                f"expected a whole number of {minimum} or more"
            )
        limit = _LIMITS.get(name, MOST_SIZE)
        if number > limit:
            raise ModelConfigError(
                f"{self.where}: {name} is {short(value)}; "
                f"expected a whole number of at most {limit:,}"
            )
        return number

    def _note_default(self, name: str, value: object) -> None:
        note = f"{name} {value}"
        if note not in self.used_defaults and not isinstance(value, (Mapping, list)):
            self.used_defaults.append(note)
