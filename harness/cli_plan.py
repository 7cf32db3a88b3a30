"""``kvknee plan MODEL``: what a model's KV cache costs, and how many requests fit."""

from __future__ import annotations

import json
import os
import sys

import click

from harness.cli_plan_asked import ALL, Asked
from harness.errors import OptionError
from harness.kv.fold import LEAST_WIDTH, WIDTH
from harness.kv.layouts import LAYOUTS
from harness.kv.plan_types import DEFAULT_UTILIZATION
from harness.kv.text import render, render_comparison
from harness.model_source import read_model


@click.command("plan")
@click.argument("models", metavar="[MODEL...]", nargs=-1)
@click.option("--compare", is_flag=True, help="Put several models side by side.")
@click.option(
    "--kv-dtype",
    "--kv-cache-dtype",
    default="auto",
    help="auto, fp16, bf16, fp32, fp8, fp8_ds_mla, int8, int4.",
)
@click.option(
    "--dtype",
    default="auto",
    help="The weights' dtype, as vLLM's: auto (the config's), float16, bfloat16, float32.",
)
@click.option(
    "--device",
    type=click.Choice(["gpu", "cpu"]),
    default="gpu",
    show_default=True,
    help="Whose defaults of vLLM apply (block size, batch, scheduling).",
)
@click.option(
    "--tp",
    "--tensor-parallel-size",
    type=int,
    default=1,
    show_default=True,
    help="Tensor-parallel ranks.",
)
@click.option("--vram", help="Memory of one device: 24GiB is 24 x 2^30 B, 24GB 24 x 10^9 B.")
@click.option(
    "--utilization",
    "--gpu-memory-utilization",
    type=float,
    default=DEFAULT_UTILIZATION,
    show_default=True,
    help="Share of --vram that the engine may take.",
)
@click.option("--weights", default="auto", show_default=True, help="Their size, or auto.")
@click.option("--overhead", help="Context, graphs and activations; an assumption by default.")
@click.option(
    "--kv-memory", "--kv-cache-memory-bytes", help="The KV pool itself, instead of --vram."
)
@click.option(
    "--from-run",
    metavar="DIR",
    help="A run on this hardware: its KV pool, its overhead and its bytes per token are taken, "
    "and its model where no MODEL is named.",
)
@click.option("--backend", help="Which backend of --from-run, where it has several.")
@click.option(
    "--batch", type=int, default=1, show_default=True, help="Requests that the bytes are for."
)
@click.option("--context", type=int, help="Tokens of a request, prompt and output together.")
@click.option("--prompt-tokens", type=int, help="With --output-tokens, instead of --context.")
@click.option("--output-tokens", type=int, help="With --prompt-tokens, instead of --context.")
@click.option(
    "--lengths",
    help="A file of lengths, one 'prompt output' pair a line: safe in 99% of random draws.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of --lengths' simulation.")
@click.option("--layout", default="paged", show_default=True, help=f"{', '.join(LAYOUTS)}, all.")
@click.option("--max-model-len", type=int, help="As vLLM's; the config's context by default.")
@click.option("--block-size", type=int, help="Tokens per block, as vLLM's.")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of one step, as vLLM's.")
@click.option(
    "--max-num-seqs",
    type=int,
    help="Most requests running at once, as vLLM's: caps every number of requests.",
)
@click.option(
    "--async-scheduling/--no-async-scheduling",
    default=None,
    help="As vLLM's: two batches in flight, so sliding layers hold more.",
)
@click.option(
    "--hybrid-kv-cache-manager/--disable-hybrid-kv-cache-manager",
    default=None,
    help="As vLLM's: off, sliding layers are held as full ones.",
)
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=None,
    help="As vLLM's: it decides how recurrent states are kept.",
)
@click.option(
    "--mamba-ssm-cache-dtype",
    help="Of recurrent states, as vLLM's: auto, float32, float16, bfloat16.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
def plan_command(
    models: tuple[str, ...], compare: bool, as_json: bool, **given: str | int | float | bool | None
) -> None:
    """What the KV cache of MODEL costs, and how many requests fit.

    MODEL is a config.json, a folder, or a hub id. Each figure is shown with its working.

    Two capacities are told: "safe concurrency" is the worst case, all requests at full length at
    once; "steady state" lets each be somewhere between its prompt and its end, as vLLM does. A
    pool and an overhead of --from-run count at the same --max-model-len alone.

    Sizes: 1 GiB is 2^30 bytes, 1 GB is 10^9; both are taken, and GiB are shown with the exact
    bytes beside.

    Layouts: paged sets blocks aside as vLLM does. contiguous-max sets max_model_len aside,
    contiguous-pow2 the next power of two (at most max_model_len), contiguous-exact prompt +
    output. dynamic promises prompt + output: its requests are those that the contiguous server
    admits, and "safe with the copy" is how many leave room for the copy that torch.cat makes.

    \b
    kvknee plan config.json --vram 24GiB --prompt-tokens 512 --output-tokens 128
    kvknee plan config.json --kv-memory 8GiB --context 4096 --layout all
    kvknee plan config.json --vram 80GiB --tp 2 --kv-dtype fp8 --lengths lengths.txt
    kvknee plan a/config.json b/config.json --compare --json
    kvknee plan --from-run results/20260101-000000-concurrency --prompt-tokens 2048 \\
        --output-tokens 256

    \f
    Raises KvkneeError for bad input.
    """
    if len(models) > 1 and not compare:
        raise OptionError("MODEL", " ".join(models), "one model, or --compare for several")
    asked = Asked(given)
    if not models and asked.run is None:
        raise OptionError("MODEL", "", "a config.json, a folder or a hub id, or --from-run DIR")
    sources = [read_model(model) for model in models]
    if not sources and asked.run is not None:
        sources = [asked.run.model()]
    plans = [asked.plan(source) for source in sources]
    if as_json:
        shown = {"models": [each.to_json() for each in plans]} if compare else plans[0].to_json()
        click.echo(json.dumps(shown, indent=2))
    elif compare:
        _print(render_comparison(plans, _width()))
    else:
        _print(render(plans[0], all_layouts=given["layout"] == ALL, width=_width()))


def _width() -> int:
    """Columns for text: those of a narrow terminal, else ``WIDTH``."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):
        # no terminal, or no standard output at all
        return WIDTH
    return max(LEAST_WIDTH, min(WIDTH, columns)) if columns else WIDTH


def _print(text: str) -> None:
    """Write ``text``; what the output's encoding lacks (a model's name) is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)
