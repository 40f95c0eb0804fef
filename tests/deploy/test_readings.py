"""Rates and quantiles of ``baton top``."""

import math

import pytest

from deploy.readings import Rates, Reading, Window, quantile, read
from telemetry.metrics import Metrics


def reading(at_s: float, metrics: Metrics) -> Reading:
    return read(at_s, {}, metrics.render().decode())


def test_rates_are_of_the_last_interval_and_quantiles_of_the_window() -> None:
    metrics, window = Metrics("tiny"), Window(60.0)
    metrics.generation_tokens.inc(1000)
    assert window.add(reading(10.0, metrics)) == Rates()
    metrics.generation_tokens.inc(50)
    metrics.prompt_tokens.inc(10)
    metrics.handoff_bytes.inc(4e9)
    for _ in range(100):
        metrics.handoff_s.labels("total").observe(0.0017)
        metrics.handoff_s.labels("copy").observe(5.0)
    rates = window.add(reading(12.0, metrics))
    assert (rates.prompt_tok_s, rates.output_tok_s, rates.handoff_gb_s) == (5.0, 25.0, 2.0)
    assert rates.handoff_p50_s == pytest.approx(0.00175)
    quiet = window.add(reading(14.0, metrics))
    assert (quiet.output_tok_s, quiet.handoff_gb_s) == (0.0, 0.0)
    assert quiet.handoff_p50_s == rates.handoff_p50_s
    window.add(reading(100.0, metrics))
    assert window.add(reading(102.0, metrics)).handoff_p50_s is None, "that is long past"


def test_another_coordinator_begins_anew() -> None:
    old, window = Metrics("tiny"), Window(60.0)
    old.generation_tokens.inc(5)
    window.add(reading(0.0, old))
    new = Metrics("tiny")
    assert window.add(reading(1.0, new)) == Rates()
    new.generation_tokens.inc(3)
    assert window.add(reading(2.0, new)).output_tok_s == 3.0


def test_quantiles_as_prometheus_computes_them() -> None:
    buckets = {0.1: 0.0, 0.2: 50.0, 0.4: 90.0, math.inf: 100.0}
    assert quantile(buckets, 0.25) == pytest.approx(0.15)
    assert quantile(buckets, 0.7) == pytest.approx(0.3)
    assert quantile(buckets, 0.99) == 0.4, "the highest finite bound"
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


def test_temperatures_by_worker() -> None:
    text = (
        "# TYPE baton_gpu_temperature_celsius gauge\n"
        'baton_gpu_temperature_celsius{instance="d-1"} 61\n'
    )
    assert read(0.0, {}, text).temperatures == {"d-1": 61.0}
