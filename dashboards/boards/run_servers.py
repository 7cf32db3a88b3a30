"""*Run*, the lower half: the servers' memory and queue, the devices, the load generator."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as d

from dashboards.boards.marks import NO_GPU, NO_RUN, NO_SERVER
from dashboards.boards.panels import KV_STEPS, About, lines, quantile_styles, theory_style
from dashboards.boards.queries import BACKEND, LATENCY_STEP, Query, client_quantile, of_run
from dashboards.boards.shell import Placed, Section

#: DCGM states memory in MiB
_MIB = 2**20


def memory() -> Section:
    """KV memory, queue, preemptions, and latency as the servers see it."""
    return Section(
        "Memory and queue, as the servers state them",
        [
            Placed(_kv_bytes(), 12, 8),
            Placed(_kv_share(), 12, 8),
            Placed(_queue(), 12, 8),
            Placed(_preemptions(), 12, 8),
            Placed(_server_latency("ttft", "TTFT (server)", _TTFT), 12, 7),
            Placed(_server_latency("tpot", "Time per output token (server)", _TPOT), 12, 7),
        ],
    )


def _kv_bytes() -> d.Panel:
    about = About(
        "KV memory used",
        "Bytes of the blocks or storages that hold tokens, and the pool (dashed) that they come "
        "from. vLLM states its pool in bytes only when it was started with "
        "--kv-cache-memory-bytes; the share beside this panel needs no bytes.",
        "bytes",
        NO_SERVER,
    )
    used = Query(f"kvknee:kv_used_bytes{{{BACKEND}}}", legend="{{backend}} used")
    pool = Query(f"kvknee:kv_pool_bytes{{{BACKEND}}}", legend="{{backend}} pool")
    return theory_style(lines(about, used, pool))


def _kv_share() -> d.Panel:
    about = About(
        "KV memory taken over time",
        "Share of the KV memory that the next request cannot have: vLLM's blocks in use over "
        "those it can give out, the contiguous server's promises over its budget. At the red "
        "line with requests waiting, memory is the limit.",
        "percentunit",
        NO_SERVER,
        KV_STEPS,
    )
    return lines(about, Query(f"kvknee:kv_usage_ratio{{{BACKEND}}}"), maximum=1, limit_line=True)


def _queue() -> d.Panel:
    about = About(
        "Running and waiting",
        "Requests that the server computes now, and those it has accepted and not begun. "
        "Waiting for KV: those of them that memory keeps out (the contiguous server says so; "
        "vLLM does not).",
        "none",
        NO_SERVER,
    )
    kept_out = f"sum by (backend) (contiguous_requests_waiting_for_kv{{{BACKEND}}})"
    return lines(
        about,
        Query(f"kvknee:requests_running{{{BACKEND}}}", legend="{{backend}} running"),
        Query(f"kvknee:requests_waiting{{{BACKEND}}}", legend="{{backend}} waiting"),
        Query(kept_out, legend="{{backend}} waiting for KV"),
    )


def _preemptions() -> d.Panel:
    about = About(
        "Preemptions per second",
        "Requests thrown out of the batch for memory and computed again later, over one minute. "
        "Any at all cost throughput; one for every four finished requests is an alert.",
        "ops",
        "vLLM has not answered. Other servers cannot preempt",
        ((None, "green"), (0.1, "red")),
    )
    return lines(about, Query(f"kvknee:preemptions:rate1m{{{BACKEND}}}"), limit_line=True)


_TTFT = (
    "From a request's arrival at the server to its first token, over 15 s. The client's figure "
    "less this one is the network and the client."
)
_TPOT = (
    "The gaps between two tokens inside the server, each counted once, over 15 s. The client's "
    "TPOT is one mean per request, so the tails differ."
)


def _server_latency(name: str, title: str, text: str) -> d.Panel:
    queries = [
        Query(f"kvknee:server_{name}_seconds:{p}{{{BACKEND}}}", legend=f"{{{{backend}}}} {p}")
        for p in ("p50", "p95", "p99")
    ]
    return quantile_styles(lines(About(title, text, "s", NO_SERVER), *queries))


def devices() -> Section:
    """GPU memory and utilisation, and the servers' own memory."""
    used = f"DCGM_FI_DEV_FB_USED * {_MIB}"
    total = f"(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * {_MIB}"
    gpu_memory = About(
        "GPU memory",
        "Frame buffer in use per GPU, by whoever: two servers on one GPU are one figure. vLLM "
        "takes its whole pool at the start, so this is flat there and says nothing of the knee.",
        "bytes",
        NO_GPU,
    )
    utilisation = About(
        "GPU utilisation",
        "Share of the time in which a kernel ran: 100 % does not mean that the GPU is full.",
        "percentunit",
        NO_GPU,
    )
    resident = About(
        "Memory of the server processes",
        "Resident memory of the process that answers /metrics. vLLM computes in another "
        "process, which is not in it.",
        "bytes",
        NO_SERVER,
    )
    return Section(
        "Devices",
        [
            Placed(
                theory_style(
                    lines(
                        gpu_memory,
                        Query(used, legend="GPU {{gpu}} used"),
                        Query(total, legend="GPU {{gpu}} pool"),
                    )
                ),
                8,
                7,
            ),
            Placed(
                lines(
                    utilisation,
                    Query("DCGM_FI_DEV_GPU_UTIL / 100", legend="GPU {{gpu}}"),
                    maximum=1,
                ),
                8,
                7,
            ),
            Placed(
                lines(
                    resident,
                    Query(
                        f'process_resident_memory_bytes{{job="servers", {BACKEND}}} or '
                        f"contiguous_process_resident_memory_bytes{{{BACKEND}}}"
                    ),
                ),
                8,
                7,
            ),
        ],
    )


def client() -> Section:
    """Whether the load generator keeps up."""
    cpu = About(
        "CPU of the load generator",
        "CPU time of its busiest process, of one core. Above 90 % it can serve no more events.",
        "percentunit",
        NO_RUN,
        ((None, "green"), (0.9, "red")),
    )
    lag = About(
        "Event-loop lag",
        "By how late the loop answered at worst in the last second. Kernel receive stamps keep "
        "it out of the arrival times; it delays the next request.",
        "s",
        NO_RUN,
        ((None, "green"), (0.05, "red")),
    )
    late = About(
        "Send lateness",
        "By how much later than intended requests were sent, over 20 s or more.",
        "s",
        NO_RUN,
        ((None, "green"), (0.02, "red")),
    )
    lateness = [
        Query(
            client_quantile(quantile, "send_lateness"),
            legend=f"{{{{backend}}}} p{quantile * 100:g}",
            step=LATENCY_STEP,
        )
        for quantile in (0.5, 0.95)
    ]
    return Section(
        "Load generator",
        [
            Placed(
                lines(
                    cpu,
                    Query(of_run("kvknee_client_cpu_ratio"), legend="CPU"),
                    limit_line=True,
                ),
                8,
                7,
            ),
            Placed(
                lines(
                    lag,
                    Query(of_run("kvknee_client_lag_seconds"), legend="lag"),
                    limit_line=True,
                ),
                8,
                7,
            ),
            Placed(quantile_styles(lines(late, *lateness, limit_line=True)), 8, 7),
        ],
    )
