"""Asks one server all prompts, several at a time, so that each has neighbours in its batch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from harness.equivalence.answers import Answer, AnswerError, read_answer
from harness.load.failure_words import shortened_words
from harness.load.fetch import fetch
from harness.load.server_facts import ServerProbe

#: likeliest tokens asked for at each place: the other server's choice should be among them
LIKELIEST = 5
_MOST_SHOWN = 200


def request_body(model: str, prompt: Sequence[int], output_tokens: int) -> dict[str, Any]:
    """A greedy request that tells tokens by their ids, each with its log-probabilities."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": LIKELIEST,
    }


def ask_all(
    probe: ServerProbe,
    client: httpx.Client,
    bodies: Sequence[dict[str, Any]],
    neighbours: int,
    timeout_s: float,
    api_key: str | None,
) -> list[Answer]:
    """The answers in the order of the bodies, ``neighbours`` in flight at a time.

    ``api_key`` is kept out of the words of an error.

    Raises BackendError for the first that fails or cannot be compared.
    """
    url = probe.address.url + "/v1/completions"

    def ask(body: dict[str, Any]) -> Answer:
        answer = fetch(client, "POST", url, within_s=timeout_s, body=body)
        if answer.object is None:
            # without the key first: half of one would not be recognized any more
            words = shortened_words(answer.text, api_key, _MOST_SHOWN)
            raise AnswerError(f"HTTP {answer.status}: {words}")
        return read_answer(answer.object)

    with ThreadPoolExecutor(max_workers=neighbours) as pool:
        try:
            return list(pool.map(ask, bodies))
        except AnswerError as error:
            pool.shutdown(cancel_futures=True)
            raise probe.fail(
                f"gives no answer that can be compared ({error})",
                "it must take token ids, logprobs and return_token_ids on /v1/completions",
            ) from error
        except httpx.HTTPError as error:
            pool.shutdown(cancel_futures=True)
            raise probe.fail(
                f"did not answer ({type(error).__name__})", "see its log, or raise --timeout"
            ) from error
