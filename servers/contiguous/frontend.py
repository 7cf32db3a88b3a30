"""From a client's request to a sequence for the engine: tokenize, check the limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from servers.contiguous.admission import AdmissionPolicy
from servers.contiguous.detokenize import DetokenizerFactory
from servers.contiguous.errors import RequestError
from servers.contiguous.limits import check_unicode, longest_token
from servers.contiguous.loading import LoadedModel
from servers.contiguous.mailbox import Mailbox
from servers.contiguous.protocol import ChatRequest, GenerationRequest
from servers.contiguous.sampling import Sampler, SamplingParams
from servers.contiguous.sequence import Sequence

#: max_tokens of a completion that names none, as OpenAI and vLLM have it
DEFAULT_COMPLETION_TOKENS = 16
#: characters of a client's own text that an error repeats
_SHOWN = 200


@dataclass(frozen=True)
class Frontend:
    """Stateless; safe to use from several threads."""

    loaded: LoadedModel
    model_name: str
    policy: AdmissionPolicy
    detokenizers: DetokenizerFactory

    def check_model(self, name: str | None) -> None:
        """Raises RequestError for a name that is not served."""
        if name is not None and name != self.model_name:
            raise RequestError(
                f"the model {name[:_SHOWN]!r} is not served here; "
                f"this server has {self.model_name!r}",
                param="model",
                code="model_not_found",
            )

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; raises RequestError for one that is no Unicode or cannot fit."""
        return self._encode(text, add_special_tokens, "prompt")

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> list[int]:
        self._check_length(text)
        check_unicode(text, param)
        ids: list[int] = self.loaded.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def encode_chat(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool, extra: dict[str, Any]
    ) -> list[int]:
        """Token ids of a conversation; raises RequestError when there is no template for it."""
        tokenizer = self.loaded.tokenizer
        if not tokenizer.chat_template:
            raise RequestError(
                f"{self.model_name} has no chat template; use /v1/completions", param="messages"
            )
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt, **extra
            )
        except Exception as error:
            # a template is a program that the model or the client brings
            raise RequestError(
                f"the chat template refused the messages: {str(error)[:_SHOWN]}", param="messages"
            ) from error
        # the template writes the special tokens itself
        return self._encode(text, False, "messages")

    def sequence(
        self, body: GenerationRequest, prompt_ids: list[int], mailbox: Mailbox
    ) -> Sequence:
        """A sequence that the engine will take; raises RequestError for one that it could not."""
        self._check_prompt(prompt_ids)
        params = self._params(body, len(prompt_ids))
        sequence = Sequence(
            prompt_ids=prompt_ids,
            params=params,
            sampler=Sampler(params, self._withheld(params), self.loaded.device),
            detokenizer=self.detokenizers(),
            eos_ids=self.loaded.eos_ids,
            sink=mailbox.put,
        )
        refusal = self.policy.refusal(sequence.promise)
        if refusal is not None:
            raise RequestError(refusal, param="max_tokens", code="kv_budget_exceeded")
        return sequence

    def _check_prompt(self, ids: list[int]) -> None:
        if not ids:
            raise RequestError("the prompt is empty", param="prompt")
        self._check_ids(ids, "prompt")

    def _check_ids(self, ids: list[int], param: str) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self.loaded.vocab_size):
            raise RequestError(
                f"token ids must lie between 0 and {self.loaded.vocab_size - 1}", param=param
            )

    def _check_length(self, text: str) -> None:
        """Before a text is tokenized, which takes minutes for one of many megabytes."""
        context = self.loaded.max_model_len
        # no token is shorter than one character, so most texts need no look at the vocabulary
        if len(text) <= context or len(text) <= context * self._longest_token:
            return
        raise RequestError(
            f"this model's context is {context} tokens, and the request asks for more: "
            f"{len(text)} characters of prompt, of which a token holds {self._longest_token} at "
            "most; shorten it",
            param="prompt",
            code="context_length_exceeded",
        )

    @cached_property
    def _longest_token(self) -> int:
        return longest_token(self.loaded.tokenizer)

    def _withheld(self, params: SamplingParams) -> frozenset[int]:
        """Token ids that would end the text; raises RequestError if min_tokens leaves no other."""
        ends = params.stop_token_ids | (frozenset() if params.ignore_eos else self.loaded.eos_ids)
        known = frozenset(token for token in ends if token < self.loaded.vocab_size)
        if params.min_tokens > 0 and len(known) == self.loaded.vocab_size:
            raise RequestError(
                "min_tokens needs a token that does not end the text, and stop_token_ids has all",
                param="stop_token_ids",
            )
        return known

    def _params(self, body: GenerationRequest, prompt_tokens: int) -> SamplingParams:
        max_tokens = self._max_tokens(body, prompt_tokens)
        self._check_ids(body.stop_token_ids or [], "stop_token_ids")
        if body.min_tokens > max_tokens:
            raise RequestError(
                f"min_tokens {body.min_tokens} is more than max_tokens {max_tokens}",
                param="min_tokens",
            )
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=body.min_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_k=max(body.top_k or 0, 0),
            seed=body.seed,
            stop=body.stop_strings,
            stop_token_ids=frozenset(body.stop_token_ids or ()),
            ignore_eos=body.ignore_eos,
            logprobs=body.wanted_logprobs,
        )

    def _max_tokens(self, body: GenerationRequest, prompt_tokens: int) -> int:
        context = self.loaded.max_model_len
        asked = body.max_tokens
        if isinstance(body, ChatRequest):
            # a chat goes on to the end of the context unless told otherwise
            asked = body.max_completion_tokens or asked or max(context - prompt_tokens, 1)
        max_tokens = asked or DEFAULT_COMPLETION_TOKENS
        if prompt_tokens + max_tokens > context:
            raise RequestError(
                f"this model's context is {context} tokens, and the request asks for "
                f"{prompt_tokens + max_tokens}: {prompt_tokens} of prompt + {max_tokens} of "
                "max_tokens; shorten either",
                param="prompt" if prompt_tokens >= context else "max_tokens",
                code="context_length_exceeded",
            )
        return max_tokens
