"""promtool on the configuration and the rules, and what other parts rely on in them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.boards.panels import DATA_SOURCE
from tests.dashboards.support import PROMETHEUS, ROOT, RULES, recorded, rules

PROMTOOL_TESTS = sorted(Path(__file__).parent.glob("promtool/*.test.yml"))
PROVISIONING = ROOT / "dashboards" / "grafana" / "provisioning"


def promtool(*arguments: str | Path) -> str:
    """Run promtool; its whole output."""
    program = shutil.which("promtool")
    assert program, "install the Debian package prometheus"
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_is_valid_with_all_its_rules() -> None:
    said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert f"{len(RULES)} rule files found" in said


def test_the_rules_are_valid() -> None:
    said = promtool("check", "rules", *RULES)
    assert "duplicate" not in said


@pytest.mark.parametrize("path", PROMTOOL_TESTS, ids=lambda path: path.name.split(".")[0])
def test_the_rules_do_what_they_say(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", path)


def test_every_rule_is_tested() -> None:
    tested = "".join(path.read_text() for path in PROMTOOL_TESTS)
    names = recorded() | {rule["alert"] for rule in rules() if "alert" in rule}
    untested = {name for name in names if name not in tested}
    # read by the rules that are made of them
    untested -= {name for name in untested if name.endswith(":buckets15s")}
    assert not untested


def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    return found


def test_every_target_is_scraped_every_second() -> None:
    found = config()
    assert found["global"]["scrape_interval"] == "1s"
    for job in found["scrape_configs"]:
        assert "scrape_interval" not in job
    targets = {
        target
        for job in found["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {
        "paged:8000",
        "contiguous:8001",
        "host.docker.internal:9646",
        "load:9646",
        "dcgm-exporter:9400",
    }


def test_only_servers_can_be_down() -> None:
    """The GPU exporter and the harness may be absent for good reasons."""
    about_up = [rule["expr"] for rule in rules() if "alert" in rule and "up" in rule["expr"]]
    asked = [expr for expr in about_up if "up{" in expr]
    assert len(asked) == 2
    assert all(expr.count("up{") == expr.count('up{job="servers"}') for expr in asked)
    servers = next(job for job in config()["scrape_configs"] if job["job_name"] == "servers")
    assert [group["labels"] for group in servers["static_configs"]] == [
        {"backend": "paged"},
        {"backend": "contiguous"},
    ]


def test_an_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"warning", "critical"}
            assert rule["for"]
            assert set(rule["annotations"]) == {"summary", "description"}


def test_the_provisioned_data_source_is_the_one_that_panels_name() -> None:
    found = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())
    (source,) = found["datasources"]
    assert (source["uid"], source["type"]) == (DATA_SOURCE.uid, DATA_SOURCE.type_val)
    assert source["jsonData"]["timeInterval"] == config()["global"]["scrape_interval"]


def test_the_dashboards_are_found_where_the_stack_mounts_them() -> None:
    found = yaml.safe_load((PROVISIONING / "dashboards" / "kvknee.yml").read_text())
    (provider,) = found["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert provider["allowUiUpdates"] is False
