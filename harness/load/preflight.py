"""Makes sure, before any load, that a backend can be measured as asked.

What is learned here (model, KV cache, accepted request body, usable tokens, chat length)
is what the load then uses. Raises UsageError subclasses only, each one clear line.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

import msgspec

from harness.load.chat_length import NoTokenCountError, calibrate
from harness.load.client import ClientOptions, StreamClient
from harness.load.clock import Clock
from harness.load.dialect import Dialect
from harness.load.exchange import Ask
from harness.load.http1 import Endpoint
from harness.load.proxies import GIVE_THE_SERVER, proxy_variable
from harness.load.server_facts import ServerProbe
from harness.load.settings import BackendAddress, LoadSettings
from harness.manifest import BackendInfo
from harness.plan.prompts import (
    FALLBACK_TOKENS,
    MIN_ALPHABET,
    WORDS,
    ChatPrompts,
    TokenPrompts,
    prompt_hash,
)
from harness.records import CellKey, RequestRecord
from harness.workload import Conversations, SharedPrefix

#: The probe's request is short: it proves streaming, not speed.
_PROBE_PROMPT_TOKENS = 32
_PROBE_OUTPUT_TOKENS = 8
#: how often a probe whose answer came as one event is tried again
_MORE_PROBES = 2
#: Numbers of the prompts sent before the load, apart from those of the load.
_FIRST_PROBE_NUMBER = 2**31
_COUNTING = "use --endpoint completions, or a server that counts tokens"

Prompts = TokenPrompts | ChatPrompts


@dataclass(frozen=True)
class PreparedBackend:
    """A backend that is ready to be loaded."""

    info: BackendInfo
    options: ClientOptions
    dialect: Dialect
    prompts: Prompts
    metrics_url: str | None

    def prompts_of(self, tokens: int) -> Prompts:
        """Prompts of so many tokens, where those at hand are token ids of another length."""
        prompts = self.prompts
        if not isinstance(prompts, TokenPrompts) or prompts.length == tokens:
            return prompts
        return TokenPrompts(prompts.alphabet, tokens, prompts.seed, prompts.nonce)


def prepare(
    address: BackendAddress, settings: LoadSettings, nonce: int, clock: Clock
) -> PreparedBackend:
    """Check one backend; raises BackendError or OptionError with what to do."""
    with ServerProbe(address, settings.api_key) as probe:
        _refuse_proxy(probe)
        facts = probe.describe(settings.model)
        info = msgspec.structs.replace(facts.info, gpu_uuids=settings.gpus.get(address.name, ()))
        _check_length(probe, info, settings)
        prompts = _prompts(probe, info.model, settings, nonce)
        prepared = PreparedBackend(
            info=info,
            options=ClientOptions(
                endpoint=Endpoint.from_url(address.url),
                request_timeout_s=settings.workload.request_timeout_s,
                idle_timeout_s=settings.workload.idle_timeout_s,
                api_key=settings.api_key,
            ),
            dialect=Dialect(
                info.model,
                settings.endpoint,
                prompt_tokens=settings.shortest[0],
                token_ids=info.kind in ("vllm", "contiguous"),
            ),
            prompts=prompts,
            metrics_url=facts.metrics_url,
        )
        record = probe_stream(prepared, settings, nonce, clock)
        for _ in range(_MORE_PROBES):
            # vLLM merges tokens into one event while its own front end is busy
            if not _came_whole(record):
                break
            record = probe_stream(prepared, settings, nonce, clock)
        _check_stream(probe, record)
    return prepared


def probe_stream(
    backend: PreparedBackend, settings: LoadSettings, nonce: int, clock: Clock
) -> RequestRecord:
    """One short streamed request, by the load's own client; teaches the dialect."""
    work = settings.workload
    prompts: Prompts = backend.prompts
    if isinstance(prompts, TokenPrompts):
        length = min(_PROBE_PROMPT_TOKENS, work.prompt_tokens)
        prompts = TokenPrompts(prompts.alphabet, length, work.seed, nonce)
    prompt = prompts.prompt(_FIRST_PROBE_NUMBER)
    ask = Ask(
        worker="preflight",
        seq=0,
        cell=CellKey(backend.info.name, backend.info.mode, 0, 0, 1),
        user=0,
        t_intended_s=clock.monotonic(),
        prompt=prompt,
        prompt_hash=prompt_hash(prompt),
        prompt_tokens=_PROBE_PROMPT_TOKENS,
        output_tokens=_PROBE_OUTPUT_TOKENS,
    )
    client = StreamClient(backend.options, backend.dialect, clock)
    try:
        return client.perform(ask, lambda _: None)
    finally:
        client.close()


def usable_tokens(probe: ServerProbe, model: str) -> tuple[int, ...]:
    """Ids of ordinary tokens: those of a text, where the server tokenizes, else a safe range."""
    text = " ".join(WORDS) + " " + " ".join(string.ascii_letters + string.digits)
    found = tuple(sorted(set(probe.tokenize(model, text))))
    return found if len(found) >= MIN_ALPHABET else FALLBACK_TOKENS


def _refuse_proxy(probe: ServerProbe) -> None:
    variable = proxy_variable(probe.address.url)
    if variable is not None:
        raise probe.fail(
            f"{variable} asks for a proxy, and a load through one would measure the proxy",
            f"unset it or name the host in NO_PROXY, and {GIVE_THE_SERVER}",
        )


def _check_length(probe: ServerProbe, info: BackendInfo, settings: LoadSettings) -> None:
    prompt_tokens, output_tokens = settings.must_fit
    if info.max_model_len is None or prompt_tokens + output_tokens <= info.max_model_len:
        return
    options = "--prompt-tokens or --output-tokens"
    if settings.replay is not None:
        options = "--max-prompt-tokens or --max-output-tokens"
    elif settings.mix is not None:
        options = "--context"
    elif isinstance(settings.workload.asks, SharedPrefix):
        options = f"--prefix-tokens, {options}"
    elif isinstance(settings.workload.asks, Conversations):
        options = "--turns, --system-tokens, --user-tokens or --output-tokens"
    raise probe.fail(
        f"holds {info.max_model_len} tokens per request, fewer than "
        f"{prompt_tokens} + {output_tokens}",
        f"lower {options}, or raise its max_model_len",
    )


def _prompts(probe: ServerProbe, model: str, settings: LoadSettings, nonce: int) -> Prompts:
    work = settings.workload
    if settings.endpoint == "completions":
        return TokenPrompts(usable_tokens(probe, model), work.prompt_tokens, work.seed, nonce)
    number = _FIRST_PROBE_NUMBER

    def measure(words: int, tail: int) -> int:
        nonlocal number
        number += 1
        text = ChatPrompts(words, tail, work.seed, nonce).prompt(number)
        return _chat_tokens(probe, model, text)

    try:
        words, tail = calibrate(work.prompt_tokens, measure)
    except NoTokenCountError as error:
        raise probe.fail(
            f"does not count the tokens of a chat prompt ({error})", _COUNTING
        ) from error
    return ChatPrompts(words, tail, work.seed, nonce)


def _chat_tokens(probe: ServerProbe, model: str, text: str) -> int:
    """The server's count of a chat prompt's tokens."""
    answer = probe.post(
        "/v1/chat/completions",
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "temperature": 0,
        },
    )
    usage = (answer or {}).get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if type(count) is not int or count < 1:
        raise probe.fail("gives no usage.prompt_tokens for a chat request", _COUNTING)
    return count


def _came_whole(record: RequestRecord) -> bool:
    """Whether a good answer came as one event."""
    return record.outcome == "ok" and len(record.token_us) < 2


def _check_stream(probe: ServerProbe, record: RequestRecord) -> None:
    """Raise BackendError unless the probe's answer came token by token."""
    if _came_whole(record):
        raise probe.fail(
            "does not stream token by token: a whole answer came as one event",
            "load a server that streams",
        )
    if record.outcome == "ok":
        return
    if record.outcome == "malformed":
        raise probe.fail(f"does not stream ({record.error})", "load a server that streams")
    raise probe.fail(
        f"fails a short streamed request ({record.outcome}: {record.error})",
        "see its log; a server that takes no token ids needs --endpoint chat",
    )
