"""The requests that clients send, with strict types: ``"5"`` is no number here.

Fields that nobody needs are ignored, as vLLM does. A field that would change the answer
and is not supported is refused unless it holds its do-nothing value: a wrong answer in
silence would be worse.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from servers.contiguous.limits import check_unicode
from servers.contiguous.logprobs import MAX_LOGPROBS

#: field: values that ask for nothing
_DO_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_p": (None, 0),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "use_beam_search": (None, False),
    "include_stop_str_in_output": (None, False),
    "skip_special_tokens": (None, True),
    "truncate_prompt_tokens": (None,),
    "prompt_embeds": (None,),
    "continue_final_message": (None, False),
    "tools": (None, []),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
}
#: under which condition the completions endpoint takes a field
_BUT = {"logprobs": ", but as a number of tokens beside return_tokens_as_token_ids: true"}

#: OpenAI takes 4 stop strings
MAX_STOPS, MAX_STOP_CHARS = 64, 4096
#: arguments of the chat template that are ours to give; ``chat_template`` would be a program
_TEMPLATE_OWN = frozenset(
    {"chat_template", "messages", "conversation", "tokenize", "add_generation_prompt"}
)


def _refusal(param: str, text: str) -> PydanticCustomError:
    """A complaint about one field, raised where pydantic looks at several."""
    return PydanticCustomError("value_error", "{text}", {"text": text, "param": param})


def _asks_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    # False == 0 in Python, but "logprobs": 0 does ask for something
    return any(
        value == quiet and isinstance(value, bool) == isinstance(quiet, bool) for quiet in harmless
    )


class StreamOptions(BaseModel):
    """What a stream carries beside tokens."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = False
    #: cumulative usage in every chunk; needs include_usage, as in vLLM
    continuous_usage_stats: bool = False


class GenerationRequest(BaseModel):
    """What both endpoints share."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, harmless in _DO_NOTHING.items():
                if name not in data or _asks_nothing(data[name], harmless):
                    continue
                if not cls._takes(name, data):
                    shown = reprlib.repr(data[name])
                    but = _BUT.get(name, "") if cls is CompletionRequest else ""
                    raise _refusal(name, f"{name} = {shown} is not supported by this server{but}")
        return data

    @classmethod
    def _takes(cls, name: str, data: dict[str, Any]) -> bool:
        """Whether this endpoint takes a field that the others do not."""
        return False

    @model_validator(mode="after")
    def _consistent(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise _refusal("stream_options", "stream_options is only allowed when stream is true")
        stops = self.stop_strings
        if "" in stops:
            raise _refusal("stop", "stop must not contain an empty string")
        # every one is looked for after every token, on the thread that all streams wait for
        if len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_CHARS:
            raise _refusal(
                "stop", f"stop may hold {MAX_STOPS} strings of {MAX_STOP_CHARS} characters in all"
            )
        for text in self.stop_strings:
            check_unicode(text, "stop")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple, whatever way it was written."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_logprobs(self) -> int | None:
        """Log-probabilities of so many likeliest tokens beside each chosen one; None: of none."""
        return None

    @property
    def include_usage(self) -> bool:
        """A usage frame before [DONE]."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Cumulative usage in every chunk."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``: a text, or a list of token ids."""

    prompt: str | list[int]
    add_special_tokens: bool = True
    #: likeliest tokens whose log-probabilities stand beside each token's own
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | Literal[False] | None = None
    #: tokens in ``logprobs`` are called by their ids; their texts are not given
    return_tokens_as_token_ids: bool | None = None

    @classmethod
    def _takes(cls, name: str, data: dict[str, Any]) -> bool:
        """``logprobs`` by token ids; texts of tokens are not given."""
        by_ids = data.get("return_tokens_as_token_ids") is True
        return name == "logprobs" and type(data[name]) is int and by_ids

    @property
    def wanted_logprobs(self) -> int | None:
        """As asked for."""
        return None if self.logprobs is False else self.logprobs

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(type(token) is int for token in value):
            return value
        raise ValueError("expected one text or one list of token ids")


class ChatRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _only_variables(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        own = sorted(_TEMPLATE_OWN & (value or {}).keys())
        if own:
            raise ValueError(f"{own[0]} may not be set here")
        return value

    @field_validator("messages")
    @classmethod
    def _plain_text(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not value:
            raise ValueError("expected at least one message")
        return [_flat_message(message, index) for index, message in enumerate(value)]


class TokenizeRequest(BaseModel):
    """``POST /tokenize``: a prompt, or messages as for chat."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    #: by default true for a prompt; a chat template brings its own
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either prompt or messages")
        if self.messages is not None:
            self.messages = [_flat_message(item, index) for index, item in enumerate(self.messages)]
        return self


def _flat_message(message: dict[str, Any], index: int) -> dict[str, Any]:
    """The message with its content as one string: text parts are put together."""
    content = message.get("content")
    if not isinstance(message.get("role"), str):
        raise ValueError(f"messages[{index}].role: expected a string")
    if content is None or isinstance(content, str):
        return {**message, "content": content or ""}
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    raise ValueError(f"messages[{index}].content: expected a string or parts of type text")


def _is_text_part(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )
