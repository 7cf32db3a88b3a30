"""The verb ``serve``: servers that are made for measuring the measurement."""

from __future__ import annotations

from typing import Any

import click

_EPILOG = """
\b
Mode paced
  Tokens come at drawn times. A distribution is a number ("0.05", "20ms"), uniform:LOW,HIGH,
  normal:MEAN,SD, lognormal:MEDIAN,SIGMA or exp:MEAN, in seconds where no unit is given.
  --tokens-per-chunk takes a number, choice:1,3,4,2 (in turn) or uniform:1,4.

\b
Mode modelled
  An engine in steps, each of --step-base + --step-per-running x running requests +
  --step-per-context x tokens in the cache + prompt tokens / --prefill-rate seconds.
  paged: vLLM's metrics, blocks taken as tokens come, the youngest request preempted;
  contiguous: the contiguous server's metrics, slots of --max-model-len tokens.

\b
Truth
  GET /truth         a line of JSON per request that has ended: when it was read, when each
                     chunk was written (CLOCK_MONOTONIC seconds), how many tokens it had
  GET /truth?since=N leaves out the first N lines;  POST /truth/reset forgets them all

\b
Framing (several joined by commas)
  lf, crlf, cr       how lines end          no-space    data:{...}
  comments           between the events     multi-line  an event's JSON over several lines
  role-first         a tokenless event at once, before the first token
  split              each event in two writes, 2 ms apart

\b
Faults (which request gets which follows from --seed and the request's number)
  reset, stall, truncate, in-band-error, garbage   after some tokens
  429, 503, redirect, empty, slow-headers          before the first one

\b
Examples
  kvknee serve simulated --port 8000 --ttft lognormal:80ms,0.3 --itl 20ms --fault stall=0.01
  kvknee serve simulated --port 8000 --mode modelled --num-blocks 200 --max-model-len 2048
"""


@click.group()
def serve() -> None:
    """Servers for testing a load test: they know the truth."""


@serve.command(epilog=_EPILOG, context_settings={"max_content_width": 100, "show_default": True})
@click.option(
    "--mode",
    default="paced",
    type=click.Choice(["paced", "modelled"]),
    help="Where token times come from: drawn, or a model of a serving engine.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option("--model", default="simulated", help="Name in the API.")
@click.option(
    "--max-model-len",
    default=131_072,
    type=click.IntRange(2, 2**24),
    help="Longest prompt and answer together, in tokens.",
)
@click.option("--seed", default=0, type=click.IntRange(0, 2**63 - 1), help="Of all draws.")
@click.option("--ttft", default="0.05", metavar="DISTRIBUTION", help="paced: to the first token.")
@click.option("--itl", default="0.02", metavar="DISTRIBUTION", help="paced: between chunks.")
@click.option(
    "--tokens-per-chunk", default="1", metavar="SIZES", help="paced: how many come at once."
)
@click.option(
    "--layout",
    default="paged",
    type=click.Choice(["paged", "contiguous"]),
    help="modelled: blocks, or a slot of --max-model-len tokens per request.",
)
@click.option("--step-base", default="4ms", metavar="SECONDS", help="modelled: of every step.")
@click.option(
    "--step-per-running", default="200us", metavar="SECONDS", help="modelled: per running request."
)
@click.option(
    "--step-per-context", default="0", metavar="SECONDS", help="modelled: per token in the cache."
)
@click.option(
    "--prefill-rate",
    default=100_000.0,
    type=click.FloatRange(1, 1e9),
    help="modelled: prompt tokens per second.",
)
@click.option(
    "--max-num-seqs",
    default=256,
    type=click.IntRange(1, 2**20),
    help="modelled: requests that run at once.",
)
@click.option(
    "--max-num-batched-tokens",
    default=2048,
    type=click.IntRange(1, 2**24),
    help="modelled: tokens that one step computes.",
)
@click.option(
    "--num-blocks",
    default=1024,
    type=click.IntRange(2, 2**24),
    help="modelled, paged: one of them is the null block.",
)
@click.option(
    "--block-size", default=16, type=click.IntRange(1, 4096), help="modelled, paged: in tokens."
)
@click.option(
    "--kv-budget", default="256MiB", metavar="SIZE", help="modelled, contiguous: of all slots."
)
@click.option(
    "--kv-bytes-per-token",
    default=1024,
    type=click.IntRange(1, 2**30),
    help="modelled: K and V of a token.",
)
@click.option("--framing", default="lf", metavar="NAMES", help="How events are written.")
@click.option(
    "--connection",
    default="keep-alive",
    type=click.Choice(["keep-alive", "close"]),
    help="What becomes of it after a response.",
)
@click.option(
    "--body",
    default="chunked",
    type=click.Choice(["chunked", "close-delimited", "content-length"]),
    help="How a streamed body ends; an answer that is not streamed has a Content-Length but for "
    "close-delimited.",
)
@click.option("--continue-100", is_flag=True, help="Send 100 Continue before every answer.")
@click.option("--fault", multiple=True, metavar="KIND=RATE", help="May be repeated.")
@click.option("--tls-cert", metavar="FILE", help="Serve https with this certificate (PEM).")
@click.option("--tls-key", metavar="FILE", help="Its key, where it is not in the same file.")
def simulated(**options: Any) -> None:
    """An OpenAI-style server with known token times, faults and limits."""
    # uvloop and the rest are loaded for this verb alone
    from servers.simulated.launch import launch

    launch(options)
