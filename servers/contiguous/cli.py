"""The command line of ``python -m servers.contiguous``; the only place that knows exit codes."""

from __future__ import annotations

import sys
from typing import Any

import click

from harness.errors import KvkneeError
from harness.kv.mode_options import DEFAULT_BATCH_SIZE, check_mode_options
from harness.sizes import parse_size
from servers.contiguous.settings import (
    DEFAULT_PREFILL_CHUNK,
    Settings,
    default_model_name,
)

_EPILOG = """
\b
Cache policies
  static   a slot of --max-model-len tokens per request, all slots allocated at start.
           slots = budget / (max-model-len x bytes per token). Wastes what a request
           does not use, never copies.
  dynamic  one padded batch that grows by a column per token and is re-packed when
           requests join or leave. Each promises prompt + max_tokens; one more is
           admitted when all of them, padded to the longest promise, fit the budget.
  off      no cache: each step computes every running text from its start. Needs no budget.
  quantized  HQQ, 4 or 8 bits: a quantized cache per request; the newest tokens (up to 127)
           stay at full precision. Changes answers a little. Each promises prompt +
           max_tokens quantized, and one prompt at a time is at full precision.
  sliding  layers keep the last --sliding-window - 1 tokens. A window that the model was not
           made with CHANGES ITS ANSWERS: what lies before it is forgotten. Models with
           windows of their own are served unchanged when --sliding-window is left out.

\b
Reservations of a static cache
  max      a slot of --max-model-len tokens, as above.
  pow2     prompt + max_tokens rounded up to a power of two, at most --max-model-len.
  exact    prompt + max_tokens.
  The last two cut regions out of one arena, first fit; a region never moves, so a
  request can wait although the free bytes in all would do.

\b
Static batches
  --batching static takes up to --batch-size of those who wait, pads their prompts on the
  left to the longest, and runs until all have ended; nobody joins in between. Whoever
  ends early or leaves frees nothing before that.

\b
Who waits
  Requests start first come first served; nobody overtakes. Prefill never starves
  running streams: between two decode steps at most --prefill-chunk prompt tokens are
  computed, one request at a time. More than --max-waiting waiting: 503 and Retry-After.

\b
Limits
  A body of more than 32 MiB: 413. A text of more characters than --max-model-len times
  the vocabulary's longest token: 400, without tokenizing. After SIGINT or SIGTERM all
  streams end with an error frame; after 10 s the server leaves, whatever still runs.

\b
Example
  python -m servers.contiguous --model ./models/tiny --cache static \\
      --max-model-len 2048 --kv-budget 16MiB --port 8001
"""


def _size(_: click.Context, param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_size(value, param.opts[0])


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 100, "show_default": True})
@click.option("--model", required=True, help="Folder of a model, or its id on the hub.")
@click.option(
    "--served-model-name", help="Name in the API.", show_default="the folder's name or the hub id"
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8001, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option(
    "--dtype",
    default="auto",
    type=click.Choice(["auto", "bfloat16", "float16", "float32"]),
    help="Of weights and KV cache; auto takes the checkpoint's.",
)
@click.option(
    "--max-model-len",
    type=click.IntRange(1),
    help="Longest prompt + answer in tokens.",
    show_default="the model's limit",
)
@click.option(
    "--cache",
    default="static",
    type=click.Choice(["off", "dynamic", "static", "quantized", "sliding"]),
    help="KV cache policy.",
)
@click.option(
    "--kv-bits",
    type=click.Choice([4, 8]),
    help="Bits of a cached number, with --cache quantized.",
    show_default="4",
)
@click.option(
    "--sliding-window",
    type=click.IntRange(1),
    help="Tokens that a query sees, itself included, with --cache sliding. Changes answers.",
    show_default="the model's own windows",
)
@click.option(
    "--compile",
    is_flag=True,
    help="Compile the decode step (torch.compile, minutes at start), with --cache static.",
)
@click.option(
    "--batching",
    default="continuous",
    type=click.Choice(["continuous", "none", "static"]),
    help="none runs one request at a time, static whole batches.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    envvar="KVKNEE_BATCH_SIZE",
    show_envvar=True,
    help="Most requests of a batch, with --batching static.",
    show_default=str(DEFAULT_BATCH_SIZE),
)
@click.option(
    "--reserve",
    default="max",
    type=click.Choice(["exact", "pow2", "max"]),
    help="What a request sets aside of a static cache.",
)
@click.option(
    "--kv-budget",
    "kv_budget_bytes",
    callback=_size,
    metavar="SIZE",
    help="Bytes for the KV cache: 256MiB (2^20 each), 256MB (10^6) or a number.",
    show_default="256MiB on a CPU; on a GPU what is free less 10 % of it or 1 GiB",
)
@click.option(
    "--max-num-seqs", default=256, type=click.IntRange(1), help="Requests that run at once."
)
@click.option("--max-waiting", default=256, type=click.IntRange(1), help="Requests that may wait.")
@click.option(
    "--prefill-chunk",
    default=DEFAULT_PREFILL_CHUNK,
    type=click.IntRange(1),
    help="Prompt tokens computed between two decode steps, at most.",
)
@click.option(
    "--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]), help="Where it runs."
)
@click.option(
    "--threads", type=click.IntRange(1), help="CPU threads of torch.", show_default="torch's choice"
)
def command(**options: Any) -> None:
    """Serve a language model with a contiguous KV cache behind an OpenAI-style API.

    Continuous batching over transformers: decode is one forward over all running requests.
    /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /health, /version, /metrics.
    """
    name = options.pop("served_model_name") or default_model_name(options["model"])
    settings = Settings(served_model_name=name, **options)
    check_mode_options(settings)
    # torch and transformers take seconds to import: not for a typo or for --help
    from servers.contiguous.server import serve

    serve(settings)


def main(arguments: list[str] | None = None) -> int:
    """Run; returns the exit code: 0 after a signal, 2 for bad input, said in one line."""
    try:
        command.main(arguments, prog_name="python -m servers.contiguous", standalone_mode=False)
    except click.ClickException as error:
        print(f"error: {' '.join(error.format_message().split())}", file=sys.stderr)
        return 2
    except click.Abort:
        return 130
    except KvkneeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
