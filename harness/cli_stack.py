"""The verbs ``up``, ``down`` and ``status``: the local stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

HOME = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for models, logs and state.  [default: $KVKNEE_HOME or .kvknee]",
)
PORT = click.IntRange(1, 65_535)


def _home(home: Path | None) -> Path:
    from harness.stack.state import home_folder

    return home if home is not None else home_folder()


@click.command()
@click.option(
    "--model",
    default="tiny",
    show_default=True,
    help="tiny or smollm2 (made here on first use), a model's folder, or a hub id.",
)
@click.option(
    "--backends", default="paged,contiguous", show_default=True, help="Which servers to start."
)
@click.option(
    "--kv-budget",
    metavar="SIZE",
    help="Bytes of KV cache per server.  [default: tiny 16MiB, smollm2 256MiB, others 1GiB]",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Longest prompt + output of a request, in tokens.",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Most requests that a server works on at once.",
)
@click.option(
    "--cache",
    type=click.Choice(["off", "dynamic", "static", "quantized", "sliding"]),
    default="static",
    show_default=True,
    help="The contiguous server's cache.",
)
@click.option(
    "--kv-bits", type=click.Choice([4, 8]), help="Bits of a cached number, with --cache quantized."
)
@click.option(
    "--sliding-window",
    type=click.IntRange(min=1),
    help="Tokens that a query sees, with --cache sliding.",
)
@click.option("--compile", is_flag=True, help="Compile the decode step, with --cache static.")
@click.option(
    "--reserve",
    type=click.Choice(["exact", "pow2", "max"]),
    default="max",
    show_default=True,
    help="What a request sets aside of a static cache.",
)
@click.option(
    "--batching",
    type=click.Choice(["continuous", "none", "static"]),
    default="continuous",
    show_default=True,
    help="How the contiguous server decodes.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Most requests of a batch, with --batching static.  [default: 8]",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32", "auto"]),
    default="bfloat16",
    show_default=True,
    help="Of weights and KV cache.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    show_default=True,
    help="auto: a GPU where there is one and a vLLM that can use it.",
)
@click.option(
    "--gpu-memory-utilization",
    type=float,
    help="GPU only: the share of device memory that vLLM wants free at its start.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="CPU threads per server.  [default: all cores but one, which the client needs]",
)
@click.option("--paged-port", type=PORT, default=8000, show_default=True)
@click.option("--contiguous-port", type=PORT, default=8001, show_default=True)
@click.option(
    "--start-timeout",
    "start_timeout_s",
    type=click.FloatRange(min=1),
    default=900.0,
    show_default=True,
    help="Seconds until a server that does not answer is given up.",
)
@HOME
def up(home: Path | None, **options: Any) -> None:
    """Start the servers on this machine and wait until they answer."""
    from rich.console import Console

    from harness.stack import local
    from harness.stack.options import UpOptions
    from harness.stack.progress import shown

    with shown(Console(stderr=True)) as progress:
        result = local.up(UpOptions(home=_home(home), **options), progress)
    click.echo("the stack is up" if result.started_now else "the stack is up already")
    for backend in result.state.backends:
        click.echo(f"  {backend.name:<12}{backend.url}   log: {backend.log}")


@click.command()
@HOME
def down(home: Path | None) -> None:
    """Stop the servers; with none up it does nothing."""
    from harness.stack import local
    from harness.stack.containers import Containers

    folder = _home(home)
    result = local.down(folder)
    containers = Containers(folder).down()
    if not result.names and not result.killed and not containers:
        click.echo("nothing is up")
        return
    names = " and ".join((*result.names, *containers)) or "what was starting"
    killed = f" ({result.killed} processes had to be killed)" if result.killed else ""
    click.echo(f"stopped {names}{killed}")


@click.command()
@HOME
def status(home: Path | None) -> int:
    """Show the servers; exit code 0 when all answer, 1 when not."""
    from harness.stack import local

    found = local.status(_home(home))
    if found is None:
        click.echo("nothing is up")
        return 1
    state, backends = found
    asked = {name: value for name, value in state.settings.items() if value is not None}
    click.echo(", ".join(f"{name} {value}" for name, value in asked.items()))
    for one in backends:
        how = "healthy" if one.healthy else "does not answer" if one.running else "died"
        click.echo(
            f"  {one.backend.name:<12}{how:<16}{one.backend.url}   "
            f"pid {one.backend.pid}   log: {one.backend.log}"
        )
    return 0 if backends and all(one.healthy for one in backends) else 1


STACK_COMMANDS = (up, down, status)
