"""The dashboards and rules as the tests read them, and which metrics exist at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from dashboards.build import FOLDER
from harness.live.collector import LiveCollector
from harness.live.snapshot import BackendFacts, RunFacts
from harness.live.worker import LiveWorker
from harness.records import CellKey, RequestRecord, RunEvent, Scalar
from harness.workload import Slo

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "tests" / "fixtures" / "metrics"
PROMETHEUS = ROOT / "dashboards" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
BOARDS = ("run", "capacity", "nightly")

#: what Grafana would fill in
VARIABLES = {
    "$__rate_interval": "20s",
    "$__range": "900s",
    "$backend": ".*",
    "$run": ".*",
    "$suite": ".*",
    "$model": ".*",
    "$machine": ".*",
}

#: Fields of NVIDIA's GPU exporter that stand, switched on, in etc/default-counters.csv of
#: NVIDIA/dcgm-exporter: the list that its image uses unless told otherwise.
DCGM_FIELDS = frozenset({"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL"})
#: Prometheus' own series.
OWN = frozenset({"up", "ALERTS"})


def board(name: str) -> dict[str, Any]:
    """A committed dashboard."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Its panels, headings left out."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


@dataclass(frozen=True)
class PanelQuery:
    """One query of a panel, or of an annotation."""

    board: str
    panel: str
    #: A, B, C, ... or the empty text for an annotation
    ref: str
    template: str
    instant: bool

    @property
    def id(self) -> str:
        return f"{self.board}-{self.panel}-{self.ref}".replace(" ", "_")

    def expr(self, values: Mapping[str, str] = VARIABLES) -> str:
        return filled(self.template, values)


def queries(name: str) -> Iterator[PanelQuery]:
    """All queries of a dashboard's panels and annotations."""
    for panel in panels(name):
        for target in panel["targets"]:
            instant = bool(target.get("instant"))
            yield PanelQuery(name, panel["title"], target["refId"], target["expr"], instant)
    for note in board(name)["annotations"]["list"]:
        yield PanelQuery(name, f"annotation {note['name']}", "", note["expr"], False)


def filled(template: str, values: Mapping[str, str] = VARIABLES) -> str:
    """The query as Prometheus gets it."""
    for name, value in values.items():
        template = template.replace(name, value)
    assert "$" not in template, f"a variable that nothing fills in: {template}"
    return template


def metric_names(expr: str) -> set[str]:
    """Names of all metrics in an expression; raises ValueError where a type is wrong."""
    found: set[str] = set()
    waiting: list[Any] = [promql.parse(expr)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, promql.VectorSelector):
            found.add(node.name or name_matcher(str(node)))
        for part in ("expr", "lhs", "rhs", "param", "vector_selector"):
            child = getattr(node, part, None)
            if child is not None:
                waiting.append(child)
        waiting.extend(getattr(node, "args", ()))
    return found


def name_matcher(selector: str) -> str:
    """The pattern of a selector without a name."""
    found = re.search(r'__name__=~"([^"]+)"', selector)
    assert found, f"a selector without a name: {selector}"
    return found[1]


def rules() -> Iterator[dict[str, Any]]:
    """All rules of all files, in order."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def recorded() -> frozenset[str]:
    """Names that the recording rules make."""
    return frozenset(rule["record"] for rule in rules() if "record" in rule)


def sample_names(page: str) -> set[str]:
    """Names of all samples of a /metrics page."""
    lines = (line for line in page.splitlines() if line and not line.startswith("#"))
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in lines}


def known_metrics() -> frozenset[str]:
    """What the real servers, the harness, and the GPU exporter state."""
    names = set(DCGM_FIELDS | OWN)
    for path in PAGES.glob("[vc]*.txt"):
        names |= sample_names(path.read_text())
    return frozenset(names | sample_names(harness_page()))


def harness_page() -> str:
    """The load generator's page: its own code, in the middle of a run of one request."""
    cell = CellKey(backend="paged", mode="paged", prompt_tokens=4, output_tokens=2, level=16)
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    worker = LiveWorker("run-1", "worker-1", slo, 0.0)
    worker.event(RunEvent(t_s=1.0, kind="level_start", cell=cell, detail={"users": 16}))
    sample: dict[str, Scalar] = {"loop_lag_s": 0.001, "cpu_ratio": 0.2, "in_flight": 16}
    for t_s in (2.0, 3.0, 4.0):
        worker.event(RunEvent(t_s=t_s, kind="client_sample", cell=cell, detail=sample))
    worker.record(
        RequestRecord(
            worker="worker-1",
            seq=1,
            cell=cell,
            user=1,
            outcome="ok",
            t_intended_s=1.0,
            t_sent_s=1.0,
            t_end_s=1.2,
            token_us=(100_000, 50_000),
            asked_prompt_tokens=4,
            asked_output_tokens=2,
            prompt_tokens=4,
            output_tokens=2,
            prompt_hash="a",
        )
    )
    collector = LiveCollector()
    collector.take(
        RunFacts(
            run="run-1",
            scenario="concurrency",
            version="0",
            start_wall_s=1.0,
            slo=slo,
            prompt_tokens=4,
            output_tokens=2,
            backends=(
                BackendFacts(name="paged", mode="paged", model="tiny", kv_bytes_per_token=1024),
            ),
        )
    )
    collector.take(worker.snapshot(15))
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()
