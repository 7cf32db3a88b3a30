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
Example
  kvknee serve simulated --port 8000 --ttft lognormal:80ms,0.3 --itl 20ms --fault stall=0.01
"""


@click.group()
def serve() -> None:
    """Servers for testing a load test: they know the truth."""


@serve.command(epilog=_EPILOG, context_settings={"max_content_width": 100, "show_default": True})
@click.option(
    "--mode", default="paced", type=click.Choice(["paced"]), help="Where token times come from."
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
