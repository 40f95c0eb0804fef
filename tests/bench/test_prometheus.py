"""Reading Prometheus' text format."""

from bench.prometheus import series, total
from telemetry.metrics import Metrics

TEXT = """\
# HELP a_total Something.
# TYPE a_total counter
a_total{state="finished",reason="stop"} 2.0
a_total{state="finished",reason="a, \\"b\\" } c"} 3.0
a_total_more 9.0
b 1.5e+06
"""


def test_series_have_their_labels_and_values() -> None:
    assert list(series(TEXT, "a_total")) == [
        ({"state": "finished", "reason": "stop"}, 2.0),
        ({"state": "finished", "reason": 'a, "b" } c'}, 3.0),
    ]


def test_a_total_is_of_the_first_name_that_is_there() -> None:
    assert total(TEXT, ["c", "a_total"]) == 5.0
    assert total(TEXT, ["b"]) == 1.5e6
    assert total(TEXT, ["c"]) is None


def test_what_our_own_coordinator_exposes_can_be_read() -> None:
    metrics = Metrics("tiny")
    metrics.requests.labels("failed", "timeout").inc(3)
    metrics.event_loop_lag_s.observe(0.3)
    text = metrics.render().decode()
    assert list(series(text, "baton_requests_total")) == [
        ({"state": "failed", "reason": "timeout"}, 3.0)
    ]
    bounds = {labels["le"]: n for labels, n in series(text, "baton_event_loop_lag_seconds_bucket")}
    assert (bounds["0.25"], bounds["0.5"], bounds["+Inf"]) == (0.0, 1.0, 1.0)
    assert (total(text, ["process_resident_memory_bytes"]) or 0) > 2**20
    assert (total(text, ["process_open_fds"]) or 0) > 2
