"""*Capacity*: what each level brought, and the KV memory against what the model's config says."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as d

from dashboards.boards.marks import NO_RUN, NO_SERVER, NO_SLO, run_annotations, run_variables
from dashboards.boards.panels import KV_STEPS, About, lines, number, theory_style
from dashboards.boards.queries import (
    BACKEND,
    Query,
    level_quantile,
    of_run,
    while_full,
    whole_run,
)
from dashboards.boards.shell import Board, Placed, Section
from dashboards.boards.tables import Column, against_level, level_rows

NO_LEVEL = f"{NO_RUN}. A level appears once it has been full for five seconds, warm-up apart"


def board() -> Board:
    """The dashboard to look at after a run."""
    return Board(
        name="capacity",
        title="kvknee: Capacity",
        description=(
            "Throughput and latency against the requests in flight, and KV bytes against "
            "theory, all backends side by side. The knee and its cause stand in the report."
        ),
        sections=(_levels(), _theory(), _side_by_side()),
        variables=run_variables(),
        annotations=run_annotations(),
        start="now-30m",
        refresh="10s",
    )


_OUTPUT_RATE = while_full("avg", "output_tokens:rate5s")
_GOODPUT = while_full("avg", "good_requests:rate5s")
_KV_TAKEN = while_full("max", "kv_usage_ratio")


def _levels() -> Section:
    curves = (
        (
            "Output tokens per second",
            "Tokens of finished requests per second while the level was full, the mean of its "
            "time. Where the curve bends, more in flight buys less.",
            "suffix: tok/s",
            _OUTPUT_RATE,
        ),
        (
            "TTFT p95",
            "Of all successful requests of a level, warm-up and drain included (the report "
            "leaves them out). Where it leaves the ground, requests wait before they start.",
            "s",
            level_quantile(0.95, "ttft"),
        ),
        (
            "TPOT p95",
            "Of all successful requests of a level: what a token costs while so many others "
            "are computed beside it.",
            "s",
            level_quantile(0.95, "tpot"),
        ),
    )
    panels = [
        Placed(against_level(About(f"{title} by level", text, unit, NO_LEVEL), expr), 8, 9)
        for title, text, unit, expr in curves
    ]
    return Section("Against requests in flight", [*panels, Placed(_table(), 24, 9)])


def _table() -> d.Panel:
    ended = f"kvknee_requests_total{{{BACKEND}"
    columns = (
        Column("succeeded", whole_run(f'{ended}, outcome="ok"}}', "backend, level"), "none"),
        Column(
            "failed", whole_run(f'{ended}, outcome!~"ok|cancelled"}}', "backend, level"), "none"
        ),
        Column("TTFT p50", level_quantile(0.5, "ttft"), "s"),
        Column("TTFT p95", level_quantile(0.95, "ttft"), "s"),
        Column("TPOT p50", level_quantile(0.5, "tpot"), "s"),
        Column("TPOT p95", level_quantile(0.95, "tpot"), "s"),
        Column("output", _OUTPUT_RATE, "suffix: tok/s", 0),
        Column("goodput", _GOODPUT, "reqps"),
        Column("KV taken (most)", _KV_TAKEN, "percentunit", 1),
        Column("KV used (most)", while_full("max", "kv_used_bytes"), "bytes"),
    )
    about = About(
        "Every level",
        "A row per backend and level. Counts and latencies are of all requests of the level; "
        "rates and memory of the time in which it was full.",
        "none",
        NO_LEVEL,
    )
    return level_rows(about, columns)


def _theory() -> Section:
    running = f"max by (backend) (kvknee:requests_running{{{BACKEND}}})"
    used = f"max by (backend) (kvknee:kv_used_bytes{{{BACKEND}}})"
    token = f"max by (backend) (kvknee_kv_bytes_per_token{{{BACKEND}}})"
    request = f"max by (backend) (kvknee_kv_bytes_per_request_predicted{{{BACKEND}}})"
    prompt = (
        f"sum by (backend) (kvknee_prompt_tokens_total{{{BACKEND}}}) "
        f'/ (sum by (backend) (kvknee_requests_total{{{BACKEND}, outcome="ok"}}) > 0)'
    )
    against = About(
        "KV bytes used and needed",
        "Measured (plain) between two bounds of theory (dashed): what the running requests need "
        "with their prompts alone, and with their whole answers. A paged cache stays between "
        "them, block rounding apart; above the upper bound is reservation waste.",
        "bytes",
        f"{NO_RUN}; vLLM's bytes need --kv-cache-memory-bytes",
    )
    per_request = About(
        "KV bytes per running request",
        "Used bytes over running requests, against one whole request by the model's config.",
        "bytes",
        f"{NO_RUN}; vLLM's bytes need --kv-cache-memory-bytes",
    )
    return Section(
        "KV memory against theory",
        [
            Placed(
                theory_style(
                    lines(
                        against,
                        Query(used, legend="{{backend}} used"),
                        Query(f"{running} * {request}", legend="{{backend}} theory, whole"),
                        Query(
                            f"{running} * {token} * ({prompt})",
                            legend="{{backend}} theory, prompts",
                        ),
                    )
                ),
                12,
                9,
            ),
            Placed(
                theory_style(
                    lines(
                        per_request,
                        Query(f"{used} / ({running} > 0)", legend="{{backend}} used"),
                        Query(request, legend="{{backend}} theory"),
                    )
                ),
                12,
                9,
            ),
            Placed(_stated_bytes(), 8, 6),
            Placed(_bytes_ratio(), 8, 6),
            Placed(_requests_that_fit(), 8, 6),
        ],
    )


def _stated_bytes() -> d.Panel:
    about = About(
        "KV bytes per token",
        "By the server: its pool's bytes over the tokens that it says fit. Theory: 2 x layers x "
        "KV heads x head size x bytes of the data type, summed over layers, from the model's "
        "config.",
        "bytes",
        f"{NO_SERVER}; theory needs a run",
        ((None, "blue"),),
        short="no run",
    )
    stated = f"max by (backend) (kvknee:kv_bytes_per_token:stated{{{BACKEND}}})"
    theory = f"max by (backend) (kvknee_kv_bytes_per_token{{{BACKEND}}})"
    return number(
        about,
        Query(stated, legend="{{backend}}, by the server"),
        Query(theory, legend="{{backend}}, theory"),
    )


def _bytes_ratio() -> d.Panel:
    about = About(
        "Server over theory",
        "KV bytes per token by the server over those of theory: 1 when the config was read as "
        "the server reads it. More: padding, layers that the server keeps whole, or, where the "
        "pool is small, its rest that makes no block.",
        "none",
        f"{NO_RUN}; vLLM's bytes need --kv-cache-memory-bytes",
        ((None, "red"), (0.99, "green"), (1.01, "orange")),
        short="no run",
    )
    ratio = (
        f"max by (backend) (kvknee:kv_bytes_per_token:stated{{{BACKEND}}}) "
        f"/ max by (backend) (kvknee_kv_bytes_per_token{{{BACKEND}}})"
    )
    return number(about, Query(ratio))


def _requests_that_fit() -> d.Panel:
    about = About(
        "Whole requests that fit, by theory",
        "The pool over one whole request's bytes, rounded down. Block rounding and slots of the "
        "full model length make it fewer: kvknee plan has the exact figure.",
        "none",
        f"{NO_RUN}; vLLM's bytes need --kv-cache-memory-bytes",
        ((None, "blue"),),
        short="no run",
    )
    fit = (
        f"floor(max by (backend) (kvknee:kv_pool_bytes{{{BACKEND}}}) "
        f"/ max by (backend) (kvknee_kv_bytes_per_request_predicted{{{BACKEND}}}))"
    )
    return number(about, Query(fit))


def _side_by_side() -> Section:
    flying = of_run(f"kvknee_requests_in_flight{{{BACKEND}}}")
    held = About(
        "In flight and running",
        "What was sent against what the server computes: where the lines part, requests wait.",
        "none",
        NO_RUN,
    )
    taken = About(
        "KV memory taken",
        "The same load in both kinds of cache. The one that is full first holds less.",
        "percentunit",
        NO_SERVER,
        KV_STEPS,
    )
    goodput = About(
        "Goodput by level",
        "Requests per second that met every limit, while the level was full.",
        "reqps",
        NO_SLO,
    )
    return Section(
        "Side by side",
        [
            Placed(
                theory_style(
                    lines(
                        held,
                        Query(f"sum by (backend) ({flying})", legend="{{backend}} in flight"),
                        Query(
                            f"max by (backend) (kvknee:requests_running{{{BACKEND}}})",
                            legend="{{backend}} running",
                        ),
                    )
                ),
                8,
                8,
            ),
            Placed(
                lines(
                    taken,
                    Query(f"max by (backend) (kvknee:kv_usage_ratio{{{BACKEND}}})"),
                    maximum=1,
                    limit_line=True,
                ),
                8,
                8,
            ),
            Placed(against_level(goodput, _GOODPUT), 8, 8),
        ],
    )
