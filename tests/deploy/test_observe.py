"""Dashboard and alerts: valid, provisioned where Grafana and Prometheus look, and about metrics
that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.record.record import HANDOFF_STAGES
from telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
OBSERVE = ROOT / "deploy/observe"
DASHBOARD: dict[str, Any] = json.loads((OBSERVE / "grafana/dashboards/baton.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((OBSERVE / "alerts.yml").read_text())
PROMETHEUS: dict[str, Any] = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"up", "ALERTS"}

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
RULES = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


def named(expression: str) -> set[str]:
    """The metrics of an expression; label names and functions have no such beginning."""
    return set(re.findall(r"\b(?:baton_|process_|vllm:)\w+|\bup\b|\bALERTS\b", expression))


def test_every_metric_is_one_that_is_exported() -> None:
    exported = {
        family.name + suffix
        for family in Metrics("m").registry.collect()
        for suffix in SUFFIXES[family.type]
    }
    for expression in [*SHOWN, *RULES]:
        assert named(expression), expression
        assert named(expression) - OF_PROMETHEUS <= exported, expression


def test_every_stage_is_one_that_is_measured() -> None:
    asked = re.findall(r'stage!?[=~]+"([^"]+)"', " ".join(SHOWN + RULES))
    assert asked
    assert {stage for each in asked for stage in each.split("|")} <= set(HANDOFF_STAGES)


def test_grafana_finds_its_data_source_and_its_dashboard() -> None:
    provisioned = OBSERVE / "grafana"
    (source,) = yaml.safe_load((provisioned / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioned / "dashboards/provider.yml").read_text())["providers"]
    (mount,) = COMPOSE["services"]["grafana"]["volumes"]
    here, there, _ = mount.split(":")
    assert (ROOT / here).samefile(provisioned)
    assert provider["options"]["path"] == f"{there}/dashboards"


def test_prometheus_reads_the_alerts_and_keeps_the_workers_names() -> None:
    service = COMPOSE["services"]["prometheus"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}
    (config,) = [path for path in mounted if path.endswith("prometheus.yml")]
    assert f"--config.file={config}" in service["command"]
    for name in PROMETHEUS["rule_files"]:
        assert (ROOT / mounted[str(Path(config).parent / name)]).is_file()
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["honor_labels"] is True
    assert job["static_configs"] == [{"targets": ["coordinator:8000"]}]


def test_prometheus_tells_the_alertmanager_of_the_compose_file() -> None:
    (found,) = PROMETHEUS["alerting"]["alertmanagers"]
    assert found["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    networks = [set(COMPOSE["services"][n]["networks"]) for n in ("alertmanager", "prometheus")]
    assert networks[0] & networks[1]


def test_every_alert_says_what_it_means_and_where_to_look() -> None:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "look"}
            assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_alerts_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool is installed; on Debian: apt-get install prometheus")
    for command in (
        ["check", "config", "--syntax-only", OBSERVE / "prometheus.yml"],
        ["check", "rules", OBSERVE / "alerts.yml"],
        ["test", "rules", Path(__file__).parent / "alerts.test.yml"],
    ):
        done = subprocess.run(
            [promtool, *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
