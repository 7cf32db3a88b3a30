"""The verb ``equivalence``: do two servers of one model give the same answers?"""

from __future__ import annotations

import click

_MOST_TOKENS = 2**20


@click.command()
@click.option(
    "--backends",
    metavar="NAME=URL,...",
    default="paged=http://127.0.0.1:8000,contiguous=http://127.0.0.1:8001",
    show_default=True,
    help="Two servers or more; the first is what the others are compared with.",
)
@click.option("--model", help="Which model, where a server has several.")
@click.option(
    "--prompt-tokens",
    metavar="LIST",
    default="16,128,512",
    show_default=True,
    help="Lengths of prompts.",
)
@click.option(
    "--prompts",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Prompts of each length.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1, _MOST_TOKENS),
    default=32,
    show_default=True,
    help="Tokens of each answer.",
)
@click.option(
    "--neighbours",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Requests in flight at once: they share the server's batch.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of the prompts.")
@click.option(
    "--tie-gap",
    metavar="NUMBER",
    help="Two logits closer than this are a tie.  "
    "[default: by dtype: 0.125 bf16, 0.031 fp16, 0.001 fp32]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1, max=86_400),
    default=300.0,
    show_default=True,
    help="Seconds that one answer may take.",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key of the servers.")
@click.option("--json", "as_json", is_flag=True, help="Everything, with stable names.")
def equivalence(
    backends: str,
    model: str | None,
    prompt_tokens: str,
    prompts: int,
    output_tokens: int,
    neighbours: int,
    seed: int,
    tie_gap: str | None,
    timeout_s: float,
    api_key: str | None,
    as_json: bool,
) -> int:
    """Put the same greedy prompts through several servers and compare them token by token.

    Paging, batching and reserving should not change what a model says. Shown are, for each
    length of prompt, how many answers are the same, where the first difference lies, and both
    servers' log-probabilities there. Prompts are seeded token ids; several are in flight at
    once, so that each has neighbours of other lengths in its batch.

    Ties: where two logits are closer than rounding can tell apart, either token is right, and
    everything after it differs. An answer counts as agreeing up to a tie when at its first
    difference one server holds the two tokens closer than --tie-gap, and the other closer than
    twice that: each rounds by itself. bf16 has 8 significant bits, so that logits around 10 lie
    0.06 apart: the default for it is 0.125.

    Quantized and sliding caches change what the model computes: their difference from a full
    cache is what they cost in quality, and it is shown as that.

    \b
    kvknee equivalence
    kvknee equivalence --backends full=http://127.0.0.1:8001,int4=http://127.0.0.1:8002
    kvknee equivalence --prompt-tokens 16,2048 --prompts 16 --neighbours 8 --json

    Exit codes: 0 the servers agree, 1 some answer differs beyond ties, 2 bad input, or a server
    that cannot be asked.

    \f
    Raises UsageError for bad input.
    """
    import json

    from rich.console import Console

    from harness.equivalence.session import run_equivalence
    from harness.equivalence.settings import read_settings
    from harness.equivalence.text import print_result, to_json

    settings = read_settings(
        backends=backends,
        model=model,
        prompt_tokens=prompt_tokens,
        prompts=prompts,
        output_tokens=output_tokens,
        neighbours=neighbours,
        seed=seed,
        tie_gap=tie_gap,
        timeout_s=timeout_s,
        api_key=api_key,
    )
    result = run_equivalence(settings, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps(to_json(result), indent=2))
    else:
        print_result(result, Console())
    return 0 if result.agrees else 1
