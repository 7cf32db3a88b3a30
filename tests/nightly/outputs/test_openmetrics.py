"""The night's file for the *Nightly* dashboard, read by the real promtool and Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from harness.nightly.outputs.openmetrics import ENDED, FIGURES, VERDICT, openmetrics_night
from tests.dashboards.support import queries
from tests.dashboards.test_prometheus_config import promtool
from tests.nightly.outputs.nights import (
    ASKED,
    AT_WALL_S,
    NIGHTS,
    Asked,
    hostile_night,
    judged,
    night,
    whole_night,
)
from tests.support.prometheus_server import prometheus_server

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+) (\d+)')


def samples(text: str) -> list[tuple[str, str, float, int]]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [SAMPLE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [(m[1], m[2], float(m[3]), int(m[4])) for m in found if m]


@pytest.mark.parametrize("name", NIGHTS)
def test_promtool_takes_every_night(name: str, tmp_path: Path) -> None:
    text = openmetrics_night(NIGHTS[name]())
    assert text.endswith("# EOF\n") and text.count("# EOF") == 1
    rows = samples(text)
    assert len({(metric, labels) for metric, labels, _, _ in rows}) == len(rows)
    path = tmp_path / "night.om"
    path.write_text(text, encoding="utf-8")
    promtool("tsdb", "create-blocks-from", "openmetrics", path, tmp_path / "data")
    if not rows:
        return
    # it reads a whole data folder; a server would have made this one
    (tmp_path / "data" / "wal").mkdir()
    dumped = promtool("tsdb", "dump", tmp_path / "data")
    assert len(dumped.splitlines()) == len(rows)
    # in milliseconds: start + an hour
    assert all(line.endswith(f" {round(AT_WALL_S + 3600)}000") for line in dumped.splitlines())


def test_promtool_has_nothing_to_say_of_the_names() -> None:
    program = shutil.which("promtool")
    assert program, "install the Debian package prometheus"
    text = openmetrics_night(whole_night())
    done = subprocess.run(
        [program, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_was_not_measured_is_left_out() -> None:
    made = night([ASKED["insufficient samples"], Asked("tpot_p95_s", tonight=None, gated=False)])
    found = {metric: value for metric, _, value, _ in samples(openmetrics_night(made))}
    assert found == {VERDICT: 2.0, ENDED: float(round(AT_WALL_S + 3600))}


def test_verdicts_are_of_gated_figures_alone() -> None:
    made = whole_night()
    codes = {
        re.search(r'figure="(\w+)"', labels)[1] + re.search(r'backend="(\w)', labels)[1]: value  # type: ignore[index]
        for metric, labels, value, _ in samples(openmetrics_night(made))
        if metric == VERDICT
    }
    assert codes == {
        "ttft_p95_sp": 0.0,
        "ttft_p95_sc": 1.0,
        "output_tokens_per_sp": 0.0,
        "goodput_rpsp": 2.0,
        "tpot_p95_sp": 2.0,
        "e2e_p50_sp": 2.0,
        "memory_kneep": 0.0,
    }


def test_a_value_is_exact_and_a_figure_of_a_run_has_no_level() -> None:
    items = judged([Asked("memory_knee", level=None), Asked("kv_bytes_per_token", level=8)])
    knee, kv = items
    text = openmetrics_night(night(judged=items))
    values = {metric: (labels, value) for metric, labels, value, _ in samples(text)}
    labels, value = values[FIGURES["memory_knee"][0]]
    assert value == knee.verdict.tonight and "level" not in labels
    labels, value = values[FIGURES["kv_bytes_per_token"][0]]
    assert value == kv.verdict.tonight and 'level="8"' in labels


def test_labels_are_escaped_on_one_line() -> None:
    text = openmetrics_night(hostile_night())
    assert 'suite="<script>alert(1)</script>|a`b_*\\\\n\\"q\\"\\\\\'' in text
    assert all(line.startswith(("# ", "kvknee_nightly_")) for line in text.splitlines())


def test_the_folder_of_a_model_is_not_told() -> None:
    (item,) = judged([ASKED["ok"]], model="/srv/models/tiny")
    text = openmetrics_night(night(judged=(item,)))
    assert 'model="tiny"' in text and "/srv" not in text


def test_every_query_of_the_board_has_an_answer(tmp_path: Path) -> None:
    """A real Prometheus over the imported night, ten minutes after it ended."""
    # within what Prometheus keeps, and older than what it still writes
    made = replace(whole_night(), at_wall_s=time.time() - 6 * 3600.0)
    path = tmp_path / "night.om"
    path.write_text(openmetrics_night(made), encoding="utf-8")
    promtool("tsdb", "create-blocks-from", "openmetrics", path, tmp_path / "data")
    at = made.at_wall_s + made.seconds + 600.0
    with prometheus_server(tmp_path, []) as url:
        wait_until_ready(url)
        found = {query.panel: answer(url, query.expr(), at) for query in queries("nightly")}
    assert {name for name, rows in found.items() if not rows} == set()
    assert found["Figures that became worse"] == [1.0]
    assert found["Age of the newest night"] == [pytest.approx(600.0, abs=1.0)]
    assert len(found["The gate, figure by figure"]) == 7
    for panel, metric in (("TTFT p95", "ttft_p95_s"), ("Requests held", "memory_knee")):
        values = {i.verdict.tonight for i in made.judged if i.series.metric.name == metric}
        assert set(found[panel]) == values - {None}


def wait_until_ready(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < end, "Prometheus did not become ready"
        time.sleep(0.1)


def answer(url: str, query: str, at_wall_s: float) -> list[float]:
    parameters: dict[str, str | float] = {"query": query, "time": at_wall_s}
    got = httpx.get(f"{url}/api/v1/query", params=parameters).json()
    assert got["status"] == "success", got
    return [float(row["value"][1]) for row in got["data"]["result"]]
