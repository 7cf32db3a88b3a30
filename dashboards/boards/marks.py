"""Variables and annotations of the dashboards about runs, and the texts of empty panels."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as d

from dashboards.boards.queries import BACKEND, of_run
from dashboards.boards.shell import annotation, variable

NO_RUN = (
    "No run in this time range (locust -f scenarios/concurrency.py starts one), or Prometheus "
    "does not reach the load generator (docs/compose.md, A harness on this machine)"
)
NO_SERVER = "No server has answered. docker compose ps shows their state"
NO_GPU = "No GPU exporter: as it should be on a machine without a GPU"
NO_SLO = "No limits asked, or no run: --slo 'ttft:500 tpot:50'"


def run_variables() -> list[d.VariableModel]:
    """Which backends, which runs."""
    return [
        variable(
            "backend",
            "Backend",
            'label_values({__name__=~"kvknee:requests_running|kvknee_current_level"}, backend)',
            "The servers under test, by the harness' names for them",
        ),
        variable(
            "run",
            "Run",
            "label_values(kvknee_run_info, run)",
            "Runs in the time range; concerns what the load generator states, not the servers",
            newest_first=True,
        ),
    ]


def run_annotations() -> list[d.AnnotationQuery]:
    """When a run began, which level was run when, what alarmed."""
    info = 'on (instance) group_left (run, scenario, model) kvknee_run_info{run=~"$run"}'
    level = f'count_values by (backend, instance) ("level", kvknee_current_level{{{BACKEND}}} > 0)'
    return [
        annotation(
            "Runs",
            f"kvknee_run_start_timestamp_seconds * 1000 * {info}",
            "purple",
            "Run {{run}}",
            "{{scenario}}, {{model}}",
            value_is_time=True,
        ),
        annotation(
            "Levels",
            of_run(level),
            "blue",
            "{{backend}}: {{level}} in flight",
            "A level, from its first request to its last",
        ),
        annotation(
            "Alerts",
            'ALERTS{alertname=~"Kvknee.+", alertstate="firing"}',
            "red",
            "{{alertname}}",
            "{{backend}}",
        ),
    ]
