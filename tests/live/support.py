"""Records, events and pages for the tests of the live metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from harness.live.snapshot import BackendFacts, RunFacts
from harness.records import CellKey, Outcome, RequestRecord, RunEvent
from harness.workload import Slo

CELL = CellKey("paged", "paged", 512, 128, 16.0)
OTHER = CellKey("contiguous", "static", 512, 128, 4.0)

#: (sample name, its labels sorted) -> value
Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def record(outcome: Outcome = "ok", cell: CellKey = CELL, **facts: object) -> RequestRecord:
    """Sent 1 ms late; tokens after 200, 210 and 240 ms; ended with the last."""
    base: dict[str, object] = {
        "worker": "local",
        "seq": 1,
        "cell": cell,
        "user": 0,
        "outcome": outcome,
        "t_intended_s": 1.0,
        "t_sent_s": 1.001,
        "t_end_s": 1.25,
        "token_us": (200_000, 10_000, 30_000),
        "asked_prompt_tokens": 512,
        "asked_output_tokens": 3,
        "prompt_tokens": 512,
        "output_tokens": 3,
        "prompt_hash": "0",
    }
    return RequestRecord(**{**base, **facts})  # type: ignore[arg-type]


def level_start(cell: CellKey = CELL, users: int = 16, t_s: float = 10.0) -> RunEvent:
    return RunEvent(t_s=t_s, kind="level_start", cell=cell, detail={"users": users})


def level_end(cell: CellKey = CELL, t_s: float = 20.0) -> RunEvent:
    return RunEvent(t_s=t_s, kind="level_end", cell=cell, detail={"reason": "complete"})


def client_sample(lag_s: float = 0.001, cpu_ratio: float = 0.25) -> RunEvent:
    return RunEvent(
        t_s=11.0, kind="client_sample", detail={"loop_lag_s": lag_s, "cpu_ratio": cpu_ratio}
    )


def facts(run: str = "r1", slo: Slo | None = None) -> RunFacts:
    return RunFacts(
        run=run,
        scenario="concurrency",
        version="0.1.0",
        start_wall_s=1000.0,
        slo=slo if slo is not None else Slo(),
        prompt_tokens=512,
        output_tokens=128,
        backends=(
            BackendFacts(name="paged", mode="paged", model="tiny", kv_bytes_per_token=1024),
            BackendFacts(name="contiguous", mode="static", model="tiny"),
        ),
    )


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(page: Samples, name: str, **labels: str) -> float | None:
    """One sample; None when the page has none."""
    return page.get((name, tuple(sorted(labels.items()))))


def names(page: Iterable[tuple[str, object]]) -> set[str]:
    return {name for name, _ in page}
