"""*Nightly*: the key figures night by night, and what the gate said of them.

A nightly job states the figures of its finished run under the names ``kvknee_nightly_*``,
which docs/dashboards.md lists; nothing here depends on how they reach Prometheus.
"""

from __future__ import annotations

from dashboards.boards.panels import About, lines, number, states
from dashboards.boards.queries import Query
from dashboards.boards.shell import Board, Placed, Section, variable

EMPTY = "No nightly job has stated its figures here (docs/dashboards.md, Nightly)"

_CELL = 'suite=~"$suite", backend=~"$backend", model=~"$model", machine=~"$machine"'
_SERIES = "{{backend}} {{model}}: {{cell}}"
#: an imported night is a single sample: it is shown until the next one is due
_LASTS = "36h"
_VERDICT = f"last_over_time(kvknee_nightly_gate_verdict{{{_CELL}}}[{_LASTS}])"
_VERDICTS = {
    "0": ("pass", "green"),
    "1": ("regression", "red"),
    "2": ("no verdict", "yellow"),
}


def board() -> Board:
    """Has anything become worse, and since when?"""
    return Board(
        name="nightly",
        title="kvknee: Nightly",
        description=(
            "Key figures of the nightly runs with the gate's verdicts. Only runs on the same "
            "machine and model are comparable: choose one of each."
        ),
        sections=(_verdicts(), _trends()),
        variables=[
            variable(
                name,
                name.capitalize(),
                f"label_values(kvknee_nightly_run_timestamp_seconds, {name})",
                text,
            )
            for name, text in (
                ("suite", "The suite file's name"),
                ("backend", "The servers under test"),
                ("model", "What they served"),
                ("machine", "Where: GPU model and count, or the CPU"),
            )
        ],
        annotations=[],
        start="now-30d",
        refresh="5m",
    )


def _verdicts() -> Section:
    return Section(
        "Verdicts",
        [
            Placed(
                number(
                    About(
                        "Figures that became worse",
                        "Regressions that the gate found in the newest night.",
                        "none",
                        EMPTY,
                        ((None, "green"), (1, "red")),
                        short="no night",
                    ),
                    Query(
                        f"count({_VERDICT} == 1) or 0 * count({_VERDICT})",
                        legend="regressions",
                    ),
                ),
                4,
                6,
            ),
            Placed(
                number(
                    About(
                        "Age of the newest night",
                        "Since the last nightly run ended. More than a day and a half: the job "
                        "did not run.",
                        "s",
                        EMPTY,
                        ((None, "green"), (129_600, "red")),
                        short="no night",
                    ),
                    Query(
                        # grows on when nobody states the figures any more
                        "time() - max(max_over_time("
                        f"kvknee_nightly_run_timestamp_seconds{{{_CELL}}}[$__range]))",
                        legend="age",
                    ),
                ),
                4,
                6,
            ),
            Placed(
                states(
                    About(
                        "The gate, figure by figure",
                        "Gated figures: pass, regression, or no verdict (insufficient samples, no "
                        "comparable baseline, or unstable).",
                        "none",
                        EMPTY,
                    ),
                    Query(
                        f"max by (backend, model, run, cell, figure) ({_VERDICT})",
                        legend=f"{_SERIES} {{{{figure}}}}",
                    ),
                    mappings=_VERDICTS,
                ),
                16,
                6,
            ),
        ],
    )


#: (title, description, unit, metric)
_FIGURES = (
    (
        "Requests held",
        "The memory knee: the highest level at which no request waited for KV memory.",
        "none",
        "kvknee_nightly_held_requests",
    ),
    (
        "Output tokens per second",
        "Tokens received inside the measured window of a level, per second.",
        "suffix: tok/s",
        "kvknee_nightly_output_tokens_per_second",
    ),
    (
        "Goodput",
        "Requests per second that met every limit, by level.",
        "reqps",
        "kvknee_nightly_goodput_requests_per_second",
    ),
    (
        "TTFT p95",
        "Time to first token in the measured window of a level.",
        "s",
        "kvknee_nightly_ttft_p95_seconds",
    ),
    (
        "TPOT p95",
        "Time per output token in the measured window of a level.",
        "s",
        "kvknee_nightly_tpot_p95_seconds",
    ),
    (
        "KV bytes per token held",
        "Measured bytes over the tokens that the client knows to be held: memory that a change "
        "wastes shows here.",
        "bytes",
        "kvknee_nightly_kv_bytes_per_token_held",
    ),
)


def _trends() -> Section:
    return Section(
        "Trends",
        [
            Placed(
                lines(
                    About(title, text, unit, EMPTY),
                    Query(
                        "max by (backend, model, run, cell) "
                        f"(last_over_time({metric}{{{_CELL}}}[{_LASTS}]))",
                        legend=_SERIES,
                    ),
                ),
                12,
                8,
            )
            for title, text, unit, metric in _FIGURES
        ],
    )
