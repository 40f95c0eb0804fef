"""How many nodes a load wants."""

from types import SimpleNamespace

import pytest

from deploy.ray.scaling import QUEUED, RUNNING, NodesForLoad, load_of
from telemetry.metrics import Metrics

POLICY = NodesForLoad(running_per_node=10, queued_per_node=2)


@pytest.mark.parametrize(
    ("running", "queued", "nodes"),
    [(0, 0, 1), (10, 0, 1), (10.5, 0, 2), (30, 0, 3), (1, 2, 1), (1, 5, 3), (40, 3, 4)],
)
def test_running_or_queued_requests_want_nodes(running: float, queued: float, nodes: int) -> None:
    assert POLICY.wanted(running, queued) == nodes


def test_the_policy_adds_up_what_nodes_report_and_what_waits_at_the_ingress() -> None:
    reported = {RUNNING: {"a": 6.0, "b": 3.0}, QUEUED: {"a": 1.0, "b": 0.0}}
    context = SimpleNamespace(aggregated_metrics=reported, total_queued_requests=4.0)
    assert POLICY(context) == (3, {})


def test_before_any_node_reports_one_is_wanted() -> None:
    context = SimpleNamespace(aggregated_metrics=None, total_queued_requests=None)
    assert POLICY(context) == (1, {})


def test_the_load_is_read_from_the_metrics() -> None:
    metrics = Metrics("tiny")
    metrics.running.set(7)
    metrics.queued.set(3)
    assert load_of(metrics.render().decode()) == {RUNNING: 7.0, QUEUED: 3.0}


@pytest.mark.parametrize("name", ["running_per_node", "queued_per_node"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_bad_setting_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        NodesForLoad(**{name: value})
