"""A small real model, scripted fake ones, and an engine that is stepped by hand."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from servers.contiguous.admission import Admission, AdmissionPolicy, DynamicPolicy, StaticPolicy
from servers.contiguous.cache import BatchCache
from servers.contiguous.cache_arena import ArenaBatchCache
from servers.contiguous.cache_dynamic import DynamicBatchCache
from servers.contiguous.cache_padded import ColumnPool, PaddedCache, growing
from servers.contiguous.cache_static import StaticBatchCache
from servers.contiguous.detokenize import ByteLevelDetokenizer
from servers.contiguous.engine import Engine
from servers.contiguous.layout import KvLayout, LayerShape
from servers.contiguous.loading import LoadedModel
from servers.contiguous.metrics import RequestMetrics
from servers.contiguous.reserving import ArenaPolicy, RectanglePolicy, Reserve
from servers.contiguous.runner import ModelRunner, PaddedRunner
from servers.contiguous.sampling import Sampler, SamplingParams
from servers.contiguous.sequence import ErrorEvent, Event, Sequence, TokenEvent

CPU = torch.device("cpu")
BOS, EOS, PAD = 256, 257, 258
RESERVES: dict[str, Reserve] = {"exact": "exact", "pow2": "pow2", "max": "max"}

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, in the byte-level alphabet's order, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    for text in ("<|bos|>", "<|eos|>", "<|pad|>"):
        vocabulary[text] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_model(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """4 layers, 2 KV heads of 32: large initial weights, so that outputs vary with the prompt."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=288,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def loaded_model(model: Any, max_model_len: int = 512) -> LoadedModel:
    """As ``load`` returns it."""
    return LoadedModel(
        model=model,
        tokenizer=byte_tokenizer(),
        device=CPU,
        eos_ids=frozenset([EOS]),
        vocab_size=model.get_input_embeddings().weight.shape[0],
        max_model_len=max_model_len,
    )


class FakeModel:
    """Says after each token the next number, stores one layer of KV, and does as scripted.

    ``before`` is called with the number of the forward (from 0) and its batch size.
    """

    VOCAB = 64
    #: 1 layer x 1 head x (2 + 2) float32
    LAYOUT = KvLayout((LayerShape(1, 2, 2),), torch.float32, CPU)

    def __init__(self, before: Callable[[int, int], object] = lambda number, batch: None) -> None:
        self._before = before
        self.forwards = 0

    def forward(self, input_ids: torch.Tensor, past_key_values: Any) -> Any:
        """The logits favour (last token + 1) modulo the vocabulary."""
        number, self.forwards = self.forwards, self.forwards + 1
        states = torch.zeros(input_ids.shape[0], 1, input_ids.shape[1], 2)
        past_key_values.update(states, states, 0)
        self._before(number, input_ids.shape[0])
        logits = torch.nn.functional.one_hot((input_ids + 1) % self.VOCAB, self.VOCAB)
        return SimpleNamespace(logits=logits.float())

    def __call__(self, input_ids: torch.Tensor, past_key_values: Any, **_: Any) -> Any:
        return self.forward(input_ids, past_key_values)


@dataclass(frozen=True)
class Reference:
    """What ``model.generate`` says, greedily and past EOS."""

    ids: list[int]
    #: ``[tokens, vocab]`` float32
    logits: torch.Tensor

    @property
    def gaps(self) -> torch.Tensor:
        """Best logit less second best, per token."""
        top = self.logits.topk(2).values
        return top[:, 0] - top[:, 1]


def reference(model: Any, prompt: Seq[int], tokens: int) -> Reference:
    """``tokens`` tokens after ``prompt``, alone."""
    out = generated(model, prompt, tokens)
    return Reference(out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits).float())


def generated(model: Any, prompt: Seq[int], tokens: int, **options: Any) -> Any:
    """What transformers' own ``generate`` returns, greedily and past EOS, for a batch of one."""
    # an EOS that does not exist: None would fall back to the model's own
    config = GenerationConfig(
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=10_000,
        pad_token_id=PAD,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, generation_config=config, **options)


def random_prompt(length: int, seed: int) -> list[int]:
    """Byte tokens only."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (length,), generator=generator).tolist()


class FakeClock:
    """Moves only when told; raises once when ``broken``."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.broken = False

    def __call__(self) -> float:
        if self.broken:
            self.broken = False
            raise OSError("no clock")
        return self.now_s


def make_cache(kind: str, layout: KvLayout, slots: int, max_model_len: int) -> BatchCache:
    """A cache that requests join and leave: ``static``, ``exact``, ``pow2``, ``dynamic``."""
    if kind == "static":
        return StaticBatchCache(layout, slots, max_model_len)
    if kind in RESERVES:
        return ArenaBatchCache(layout, slots * max_model_len)
    return DynamicBatchCache(layout)


def make_runner(model: Any, policy: AdmissionPolicy, cache: BatchCache, layout: KvLayout) -> Any:
    """The model on a cache, or on a padded batch where the policy is for one."""
    if not isinstance(policy, RectanglePolicy):
        return ModelRunner(model, cache, CPU)
    storage = growing if policy.reserve is None else ColumnPool(layout, policy.pool_tokens)
    padded = PaddedCache(storage, policy.columns, policy.max_model_len, CPU)
    return PaddedRunner(model, padded, CPU)


def make_policy(
    kind: str, layout: KvLayout, slots: int, max_model_len: int, max_num_seqs: int = 256
) -> AdmissionPolicy:
    """The policy to it, with a budget of just ``slots`` full contexts.

    ``batch-max``, ``batch-pow2``, ``batch-exact`` and ``batch-dynamic`` are static batches.
    """
    per_token = layout.bytes_per_token
    slot = max_model_len * per_token
    if kind == "static":
        return StaticPolicy(slots, max_num_seqs, slot)
    if kind in RESERVES:
        return ArenaPolicy(
            slots * max_model_len, per_token, max_num_seqs, max_model_len, RESERVES[kind]
        )
    if kind.startswith("batch-"):
        reserve = RESERVES.get(kind.removeprefix("batch-"))
        return RectanglePolicy(slots * slot, per_token, max_num_seqs, max_model_len, reserve)
    return DynamicPolicy(slots * slot, per_token, max_num_seqs)


@dataclass
class Collected:
    """What one request's client would have got."""

    events: list[Event] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [event.token_id for event in self.events if isinstance(event, TokenEvent)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TokenEvent))

    @property
    def finish(self) -> str | None:
        last = self.events[-1] if self.events else None
        return last.finish_reason if isinstance(last, TokenEvent) else None

    @property
    def error(self) -> str | None:
        last = self.events[-1] if self.events else None
        return last.message if isinstance(last, ErrorEvent) else None


def _deliver(batch: list[tuple[Sequence, Event]]) -> None:
    for sequence, event in batch:
        sequence.sink(event)


class Bench:
    """An engine without a thread, and what comes out of it."""

    def __init__(
        self,
        model: Any,
        layout: KvLayout,
        kind: str = "static",
        *,
        slots: int = 8,
        max_model_len: int = 512,
        max_num_seqs: int = 256,
        max_waiting: int = 256,
        prefill_chunk: int = 512,
        policy: AdmissionPolicy | None = None,
        runner: Any = None,
    ) -> None:
        self.layout = layout
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.cache = make_cache(kind, layout, min(slots, max_num_seqs), max_model_len)
        self.policy = policy or make_policy(kind, layout, slots, max_model_len, max_num_seqs)
        self.runner = runner or make_runner(model, self.policy, self.cache, layout)
        self.admission = Admission[Sequence](self.policy, max_waiting)
        self.engine = Engine(
            self.runner,
            self.admission,
            RequestMetrics(self.registry, "m"),
            deliver=_deliver,
            clock=self.clock,
            prefill_chunk=prefill_chunk,
        )

    def sequence(self, prompt: Seq[int], params: SamplingParams) -> tuple[Sequence, Collected]:
        """A request that is not submitted yet."""
        out = Collected()
        stop_ids = params.stop_token_ids | (frozenset() if params.ignore_eos else {EOS})
        made = Sequence(
            prompt_ids=list(prompt),
            params=params,
            sampler=Sampler(params, frozenset(stop_ids), CPU),
            detokenizer=ByteLevelDetokenizer([bytes([token]) for token in range(256)]),
            eos_ids=frozenset([EOS]),
            sink=out.events.append,
        )
        return made, out

    def submit(
        self, prompt: Seq[int], max_tokens: int = 16, **params: Any
    ) -> tuple[Sequence, Collected]:
        """Queue a greedy request that ignores EOS, unless told otherwise."""
        chosen = SamplingParams(
            max_tokens=max_tokens, **{"temperature": 0.0, "ignore_eos": True, **params}
        )
        made, out = self.sequence(prompt, chosen)
        self.engine.submit(made)
        return made, out

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    def run(self) -> None:
        """Until there is nothing left to do."""
        while self.engine.step():
            pass

    def outcomes(self, outcome: str) -> float:
        """How many requests ended so."""
        labels = {"model": "m", "outcome": outcome}
        return self.registry.get_sample_value("contiguous_requests_total", labels) or 0.0


def scripted_bench(
    kind: str, before: Callable[[int, int], object] = lambda number, batch: None, **options: Any
) -> Bench:
    """A bench over ``FakeModel``; ``before`` is told of each forward."""
    return Bench(FakeModel(before), FakeModel.LAYOUT, kind, **options)
