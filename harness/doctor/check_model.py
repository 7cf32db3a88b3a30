"""Rows about the models: can they be had, and what does their config say."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.facts import BadModel, HeldModel, Model, Unknown
from harness.doctor.rows import Row, Way, fault, ok, warning
from harness.sizes import readable_size

_COMPOSE: tuple[Way, ...] = ("compose",)


def check_model(model: Model, ways: tuple[Way, ...]) -> Iterator[Row]:
    """One row for the model of ``kvknee up``, one more when the hub is out of reach."""
    if isinstance(model, Unknown):
        yield warning(
            "model",
            f"cannot be told: {model.reason}",
            "try again online, or name a model's folder",
            ways,
        )
    elif isinstance(model, BadModel):
        yield fault("model", model.problem, model.remedy, ways)
    else:
        yield ok("model", _described(model, ", to be downloaded"), ways)
        if model.offline:
            yield _offline(model, ways)


def check_compose_model(model: Model) -> Iterator[Row]:
    """One row for the model of the Compose files.

    Their volume of models cannot be seen from here: what cannot be fetched may lie there.
    """
    name = "model_compose"
    if isinstance(model, Unknown):
        remedy = "see that it lies there, config.json and all; or write a hub id"
        yield warning(name, f"MODEL cannot be told: {model.reason}", remedy, _COMPOSE)
    elif isinstance(model, HeldModel):
        yield ok(name, _described(model, ", fetched by the stack"), _COMPOSE)
        if model.offline:
            yield warning(name, _UNREACHED, _ONLINE, _COMPOSE)
    elif model.unreachable:
        yield warning(name, f"{model.name}: {_UNREACHED}", _ONLINE, _COMPOSE)
    else:
        yield fault(name, model.problem, model.remedy, _COMPOSE)


_UNREACHED = "the hub cannot be reached; the stack starts only if its volume has the model already"
_ONLINE = (
    "go online (is HF_HUB_OFFLINE set?), or set MODEL=tiny in .env, which is made, not fetched"
)


def _described(model: HeldModel, to_fetch: str) -> str:
    if model.made_here:
        return f"{model.name}: made here when it is first needed, with no download"
    parts = [model.name]
    if model.architecture:
        parts.append(model.architecture)
    if model.context_tokens is not None:
        parts.append(f"context {model.context_tokens:,} tokens")
    if model.kv_bytes_per_token is not None:
        parts.append(f"{model.kv_bytes_per_token:,} B of KV per token")
    if model.weights_bytes is not None:
        where = "" if model.weights_here else to_fetch
        parts.append(f"weights {readable_size(model.weights_bytes)}{where}")
    return "; ".join(parts)


def _offline(model: HeldModel, ways: tuple[Way, ...]) -> Row:
    if model.weights_here:
        return ok("hub", "the hub is not asked; the model lies in its cache", ways)
    return warning(
        "hub",
        f"the hub is not reached (offline?), and the weights of {model.name} are not in its cache",
        "go online once, or name a model's folder",
        ways,
    )
