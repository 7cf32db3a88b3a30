"""The request body that a server accepts, learned once per backend.

Servers differ in what they take beyond OpenAI's fields, and some answer 400 to an unknown
one. The load starts with the fullest body and, when the server refuses it before it has
ever accepted anything, goes one step plainer. What was accepted is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

EndpointName = Literal["completions", "chat"]
Prompt = tuple[int, ...] | str

#: vLLM echoes the prompt's ids in the first chunk when asked for token ids. Up to this
#: prompt length that is some kilobytes; beyond, the echo itself would delay the first
#: token, and cumulative usage is the evidence.
_MAX_ECHOED_PROMPT_TOKENS = 4096

_USAGE_EACH = {"include_usage": True, "continuous_usage_stats": True}
_STEPS: tuple[dict[str, object], ...] = (
    {"stream_options": _USAGE_EACH, "ignore_eos": True, "return_token_ids": True},
    {"stream_options": _USAGE_EACH, "ignore_eos": True},
    {"stream_options": {"include_usage": True}},
    {},
)
_PATHS: Mapping[str, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


class Dialect:
    """What one backend accepts; shared by all its users."""

    def __init__(
        self, model: str, endpoint: EndpointName, *, prompt_tokens: int, token_ids: bool
    ) -> None:
        """``token_ids``: whether this kind of server knows ``return_token_ids``.

        ``prompt_tokens``: of the shortest prompt; longer ones go without, each by itself.
        """
        self.model = model
        self.endpoint = endpoint
        wants_ids = token_ids and prompt_tokens <= _MAX_ECHOED_PROMPT_TOKENS
        self._step = 0 if wants_ids else 1
        #: a request was accepted as it stands: a 400 is an error from now on
        self.proven = False

    @property
    def path(self) -> str:
        """The path of the endpoint, from the backend's URL."""
        return _PATHS[self.endpoint]

    @property
    def exact_length(self) -> bool:
        """Whether the server is asked to ignore the end-of-sequence token."""
        return "ignore_eos" in _STEPS[self._step]

    @property
    def step(self) -> int:
        """How plain the body is; 0 is the fullest."""
        return self._step

    def resume(self, step: int, *, proven: bool) -> None:
        """Go on from what another process learned of the same server."""
        self._step, self.proven = step, proven

    def plainer(self) -> bool:
        """Go one step plainer; False when there is none, or the server took this one."""
        if self.proven or self._step + 1 == len(_STEPS):
            return False
        self._step += 1
        return True

    def body(self, prompt: Prompt, max_tokens: int) -> bytes:
        """The JSON body of a streaming request."""
        asked: dict[str, object] = {"model": self.model, "max_tokens": max_tokens}
        if self.endpoint == "chat":
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        step = self._step
        if step == 0 and len(prompt) > _MAX_ECHOED_PROMPT_TOKENS and self.endpoint != "chat":
            step = 1
        return msgspec.json.encode({**asked, "temperature": 0, "stream": True, **_STEPS[step]})
