"""*Run*: is the cache filling, are requests waiting, what do users feel, which level is it?"""

from __future__ import annotations

from dashboards.boards import run_servers
from dashboards.boards.marks import NO_RUN, NO_SERVER, NO_SLO, run_annotations, run_variables
from dashboards.boards.panels import CALM, KV_STEPS, About, heat, lines, number, quantile_styles
from dashboards.boards.queries import (
    BACKEND,
    LATENCY_STEP,
    RATE_STEP,
    Query,
    client_quantile,
    client_rate,
    of_run,
)
from dashboards.boards.shell import Board, Placed, Section

_QUANTILES = (0.5, 0.95, 0.99)


def board() -> Board:
    """The dashboard to keep open during a run."""
    return Board(
        name="run",
        title="kvknee: Run",
        description=(
            "A run as it goes: the verdict, what users feel, the KV cache and the queue, the "
            "GPU, and whether the load generator keeps up."
        ),
        sections=(
            _verdict(),
            _felt(),
            _throughput(),
            run_servers.memory(),
            run_servers.devices(),
            run_servers.client(),
        ),
        variables=run_variables(),
        annotations=run_annotations(),
        start="now-15m",
        refresh="5s",
    )


def _verdict() -> Section:
    level = f"max by (backend) (kvknee_current_level{{{BACKEND}}})"
    # not of the selected run alone: after its end that would stay at what was in flight last
    flying = f"kvknee_requests_in_flight{{{BACKEND}}}"
    kv = f"max by (backend) (kvknee:kv_usage_ratio{{{BACKEND}}})"
    waiting = f"sum by (backend) (kvknee:requests_waiting{{{BACKEND}}})"
    panels = (
        number(
            About(
                "Level",
                "The level that is run now: so many users, each with one request in flight. "
                "The backends take turns; the one that is not loaded is idle.",
                "none",
                NO_RUN,
                ((None, "blue"),),
                short="no run",
            ),
            Query(level),
            mappings={"0": ("idle", "text")},
        ),
        number(
            About(
                "In flight",
                "Requests sent and not ended, as the load generator counts them.",
                "none",
                NO_RUN,
                ((None, "blue"),),
                short="no run",
            ),
            Query(f"sum by (backend) ({flying})"),
        ),
        number(
            About(
                "Goodput",
                "Requests per second that met every limit of --slo. Failures miss.",
                "reqps",
                NO_SLO,
                short="no limits",
            ),
            Query(client_rate("kvknee_good_requests_total"), step=RATE_STEP),
        ),
        number(
            About(
                "Failed",
                "Share of the run's requests that failed so far, cancelled ones left out.",
                "percentunit",
                NO_RUN,
                ((None, "green"), (0.0001, "yellow"), (0.01, "red")),
                short="no run",
            ),
            Query(_failed_share()),
        ),
        number(
            About(
                "KV memory taken",
                "Share of the KV memory that the next request cannot have: vLLM's blocks in "
                "use, the contiguous server's promises. From 95 % on it counts as full.",
                "percentunit",
                NO_SERVER,
                KV_STEPS,
                short="no server",
            ),
            Query(kv),
        ),
        number(
            About(
                "Waiting",
                "Requests that the server has accepted and not begun.",
                "none",
                NO_SERVER,
                ((None, "green"), (1, "orange")),
                short="no server",
            ),
            Query(waiting),
        ),
        number(
            About(
                "Load generator",
                "Whether the load generator itself is the limit. Then the latencies are its "
                "own, and the level gives no verdict.",
                "none",
                f"{NO_RUN} (the first three seconds of a level say nothing either)",
                short="no run",
            ),
            Query("max by (instance) (kvknee_client_bound)", legend="client"),
            mappings={"0": ("keeps up", "green"), "1": ("is the limit", "red")},
        ),
        number(
            About(
                "Alerts",
                "Alerts that fire now: KV memory full with a queue, preemption storm, server "
                "down, client-bound. The marks on the time axis name them.",
                "none",
                "Prometheus has not answered",
                ((None, "green"), (1, "red")),
                short="no answer",
            ),
            Query(
                'count(ALERTS{alertname=~"Kvknee.+", alertstate="firing"}) or vector(0)',
                legend="firing",
            ),
        ),
    )
    return Section("Verdict", [Placed(panel, 3, 5) for panel in panels])


def _failed_share() -> str:
    ended = f'kvknee_requests_total{{{BACKEND}, outcome!="cancelled"}}'
    failed = f'kvknee_requests_total{{{BACKEND}, outcome!~"ok|cancelled"}}'
    return f"sum by (backend) ({of_run(failed)}) / (sum by (backend) ({of_run(ended)}) > 0)"


def _felt() -> Section:
    texts = {
        "ttft": (
            "TTFT (client)",
            "Time to first token of successful requests: from the request's first byte to its "
            "first token, over the last 20 s or more. Warm-up and drain included, which the "
            "report leaves out. A quantile lies inside a bucket, and neighbouring bounds differ "
            "by up to 1.67 times.",
        ),
        "tpot": (
            "TPOT (client)",
            "Time per output token of successful requests: (last token - first token) / "
            "(tokens - 1), one figure per request, over the last 20 s or more.",
        ),
    }
    panels = []
    for name, (title, text) in texts.items():
        queries = [
            Query(
                client_quantile(quantile, name),
                legend=f"{{{{backend}}}} p{quantile * 100:g}",
                step=LATENCY_STEP,
            )
            for quantile in _QUANTILES
        ]
        limit = Query(of_run(f'kvknee_slo_seconds{{metric="{name}"}}'), legend="SLO")
        about = About(title, text, "s", NO_RUN)
        panels.append(Placed(quantile_styles(lines(about, *queries, limit)), 12, 8))
    for name, (title, _) in texts.items():
        about = About(
            f"{title}: $backend",
            "Every successful request, by when it ended and how long it took: a second mode or "
            "a tail that quantiles hide shows here.",
            "s",
            NO_RUN,
        )
        buckets = client_rate(f"kvknee_{name}_seconds_bucket", "le")
        panels.append(Placed(heat(about, buckets, repeat="backend"), 24, 8))
    return Section("What users feel", panels)


def _throughput() -> Section:
    output = f"sum by (backend) (kvknee:output_tokens:rate10s{{{BACKEND}}})"
    prompt = f"sum by (backend) (kvknee:prompt_tokens:rate10s{{{BACKEND}}})"
    ended = f"rate(kvknee_requests_total{{{BACKEND}}}[$__rate_interval])"
    return Section(
        "Throughput",
        [
            Placed(
                lines(
                    About(
                        "Output tokens per second (server)",
                        "Tokens generated, those of unfinished requests included, over 10 s.",
                        "suffix: tok/s",
                        NO_SERVER,
                    ),
                    Query(output),
                ),
                8,
                7,
            ),
            Placed(
                lines(
                    About(
                        "Prompt tokens per second (server)",
                        "Tokens prefilled, over 10 s. Prefill and decode are two workloads: "
                        "where one rises the other may fall.",
                        "suffix: tok/s",
                        NO_SERVER,
                    ),
                    Query(prompt),
                ),
                8,
                7,
            ),
            Placed(
                lines(
                    About(
                        "Requests per second by outcome (client)",
                        "Requests that ended; outcomes that never occurred are left out.",
                        "reqps",
                        NO_RUN,
                        CALM,
                    ),
                    Query(
                        f"sum by (backend, outcome) ({of_run(ended)}) > 0",
                        legend="{{backend}} {{outcome}}",
                        step=RATE_STEP,
                    ),
                ),
                8,
                7,
            ),
        ],
    )
