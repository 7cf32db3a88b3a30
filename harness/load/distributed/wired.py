"""A prepared backend as it travels from the master to its workers.

The master has asked the server who it is and proved that it streams; a worker only makes
sure that it reaches it, with its own API key.
"""

from __future__ import annotations

from typing import cast

from harness.errors import UsageError
from harness.load.client import ClientOptions
from harness.load.dialect import Dialect, EndpointName
from harness.load.distributed.messages import Prepare, WiredBackend
from harness.load.http1 import Endpoint
from harness.load.preflight import PreparedBackend
from harness.load.server_facts import ServerProbe
from harness.load.settings import BackendAddress
from harness.plan.prompts import ChatPrompts, TokenPrompts


def wired(backend: PreparedBackend) -> WiredBackend:
    """What a worker needs of it; never the API key."""
    prompts = backend.prompts
    return WiredBackend(
        info=backend.info,
        body_step=backend.dialect.step,
        proven=backend.dialect.proven,
        token_prompts=prompts if isinstance(prompts, TokenPrompts) else None,
        chat_prompts=prompts if isinstance(prompts, ChatPrompts) else None,
    )


def prepared(plan: Prepare, api_key: str | None) -> dict[str, PreparedBackend]:
    """The backends of a plan, each of them asked once; raises UsageError, one clear line."""
    return {backend.info.name: _prepared(plan, backend, api_key) for backend in plan.backends}


def _prepared(plan: Prepare, backend: WiredBackend, api_key: str | None) -> PreparedBackend:
    info, work = backend.info, plan.workload
    with ServerProbe(BackendAddress(info.name, info.url), api_key) as probe:
        probe.describe(info.model)
    prompts = backend.token_prompts or backend.chat_prompts
    if prompts is None:
        raise UsageError(f"backend {info.name}: the master sent no prompts")
    dialect = Dialect(
        info.model,
        cast("EndpointName", work.endpoint),
        prompt_tokens=work.prompt_tokens,
        token_ids=False,
    )
    dialect.resume(backend.body_step, proven=backend.proven)
    return PreparedBackend(
        info=info,
        options=ClientOptions(
            endpoint=Endpoint.from_url(info.url),
            request_timeout_s=work.request_timeout_s,
            idle_timeout_s=work.idle_timeout_s,
            api_key=api_key,
        ),
        dialect=dialect,
        prompts=prompts,
        metrics_url=None,
    )
