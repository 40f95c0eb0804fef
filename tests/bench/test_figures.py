"""Every formula against values computed by hand."""

import pytest

from bench.harness.client.record import Arrival, Failure, Record, Usage
from bench.harness.figures.counting import Count
from bench.harness.figures.goodput import Bounds, Slo, attainment, search
from bench.harness.figures.latency import tbt_s, tokens_per_arrival, tpot_s
from bench.harness.figures.outcome import Outcome, by_failure, failures
from bench.harness.figures.summary import summary
from bench.harness.figures.timeline import timeline
from bench.harness.score import WEIGHTS, ScoreFailed, weighted
from bench.measures import spread_ms


def record(
    due: float, arrivals: list[float], done: float, failure: Failure | None = None
) -> Record:
    return Record(
        due_at_s=due, sent_at_s=due + 0.001, first_byte_at_s=due + 0.002, done_at_s=done,
        streamed=True, arrivals=tuple(Arrival(at, 1, 2, 1) for at in arrivals),
        usage=Usage(10, len(arrivals), 10 + len(arrivals)), failure=failure, detail="why",
    )  # fmt: skip


def outcome(
    due: float, arrivals: list[float], done: float, failure: Failure | None = None
) -> Outcome:
    found = record(due, arrivals, done, failure)
    n = len(arrivals)
    return Outcome(f"at {due}", found, Count(n, n, n, n, "ids"), prompt_len=10)


def test_the_latencies_of_one_request() -> None:
    one = record(100.0, [100.5, 100.6, 100.9], 101.0)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.itl_s == pytest.approx([0.1, 0.3])
    assert one.e2e_s == pytest.approx(1.0)
    assert tpot_s(one, 3) == pytest.approx(0.25)  # (101.0 - 100.5) / 2
    assert tpot_s(one, 6) == pytest.approx(0.1)  # several tokens an event change nothing else
    assert tpot_s(one, 1) is None


def test_latency_counts_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    late = Record(
        due_at_s=10.0, sent_at_s=12.0, first_byte_at_s=12.1, done_at_s=13.0, streamed=True,
        arrivals=(Arrival(12.5, 1, 1, 1),),
    )  # fmt: skip
    assert (late.ttft_s, late.e2e_s) == (2.5, 3.0)


def test_tbt_is_the_mean_of_the_longest_tenth_of_the_gaps() -> None:
    assert tbt_s([]) is None
    assert tbt_s([1.0, 3.0]) == 3.0  # a tenth, but at least one
    assert tbt_s([float(n) for n in range(1, 21)]) == pytest.approx(19.5)  # of 20: 19 and 20
    assert tbt_s([float(n) for n in range(1, 22)]) == pytest.approx(20.0)  # of 21: 19, 20, 21


def test_percentiles_in_milliseconds() -> None:
    assert spread_ms([]) is None
    found = spread_ms([0.001, 0.002, 0.003, 0.004, 0.005])
    assert found == pytest.approx(
        {"mean": 3.0, "p50": 3.0, "p90": 4.6, "p95": 4.8, "p99": 4.96, "max": 5.0}
    )


def test_tokens_that_share_an_arrival() -> None:
    assert tokens_per_arrival([record(0, [1, 2], 3)], [6]) == 3.0
    assert tokens_per_arrival([], []) is None


def test_the_figures_of_a_level() -> None:
    good = [outcome(0.0, [1.0, 2.0], 2.0), outcome(1.0, [2.0, 3.0, 4.0], 4.0)]
    found = summary([*good, outcome(0.5, [0.7], 5.0, Failure.DROPPED)])
    assert (found["requests"], found["completed"], found["failed"]) == (3, 2, 1)
    assert found["failures"] == {"dropped": 1}
    assert found["wall_s"] == 5.0  # the failed one's time counts, its tokens do not
    assert (found["prompt_tokens"], found["output_tokens"]) == (20, 5)
    assert found["total_tok_s"] == pytest.approx(5.0)
    assert found["output_tok_s"] == pytest.approx(1.0)
    assert found["ttft_ms"]["mean"] == pytest.approx(1000)
    assert found["itl_ms"]["mean"] == pytest.approx(1000)
    assert found["e2e_ms"]["max"] == pytest.approx(3000)
    assert found["counts"]["by_ids"] == 2


def test_failures_are_listed_with_what_came() -> None:
    bad = [outcome(0, [1.0], 2, Failure.STALLED), outcome(0, [1.0], 2, Failure.STALLED)]
    bad.append(outcome(0, [], 1, Failure.CONNECT))
    assert by_failure(bad) == {"stalled": 2, "connect": 1}
    assert failures([outcome(0, [1.0], 2), *bad])[0] == {
        "label": "at 0", "failure": "stalled", "status": None, "detail": "why",
        "received_tokens": 1, "received_bytes": 0, "after_ms": 2000.0,
    }  # fmt: skip


def test_the_score_is_the_weighted_sum() -> None:
    tok_s = {1: 10.0, 2: 20.0, 4: 30.0, 8: 40.0, 16: 50.0, 32: 60.0, 64: 70.0}
    assert weighted(tok_s) == 10 + 20 + 60 + 80 + 200 + 240 + 560
    assert weighted(tok_s, correct=False) == 0
    assert sum(WEIGHTS.values()) == 22


def test_a_published_row_gives_its_published_score() -> None:
    row = {1: 984, 2: 1753, 4: 3038, 8: 4749, 16: 6446, 32: 11144, 64: 12810}
    assert weighted(row) == 191_151


def test_no_score_without_all_levels() -> None:
    with pytest.raises(ScoreFailed, match="32, 64"):
        weighted(dict.fromkeys((1, 2, 4, 8, 16), 1.0))


def test_attainment_counts_failed_requests_as_missed() -> None:
    slo = Slo(ttft_s=0.5, tpot_s=0.1)
    outcomes = [
        outcome(0, [0.5, 0.6], 0.6),  # both met, at the very bound of TTFT
        outcome(0, [0.6, 0.7], 0.7),  # TTFT missed
        outcome(0, [0.5, 0.7], 0.7),  # TPOT missed
        outcome(0, [0.4, 0.5], 0.5, Failure.MISCOUNT),
        outcome(0, [0.4], 0.5),  # one token has no TPOT
    ]
    assert [slo.met(o) for o in outcomes] == [True, False, False, False, True]
    assert attainment(outcomes, slo) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="ttft_s"):
        Slo(0, 1)


def searched(limit: float, first: float, **more: float) -> tuple[float | None, list[float]]:
    """A server that attains everything up to ``limit`` and nothing above."""
    trials: list[float] = []
    rates = search(first, 0.9, **more)  # type: ignore[arg-type]
    rate = next(rates)
    while True:
        trials.append(rate)
        try:
            rate = rates.send(1.0 if rate <= limit else 0.0)
        except StopIteration as end:
            return end.value.met, trials


def test_the_search_doubles_then_bisects_and_gives_a_rate_that_was_met() -> None:
    assert searched(10.0, 1.0) == (10.0, [1, 2, 4, 8, 16, 12, 10, 11])
    assert searched(0.3, 1.0) == (0.28125, [1, 0.5, 0.25, 0.375, 0.3125, 0.28125])
    assert searched(0.0, 1.0, max_trials=3) == (None, [1, 0.5, 0.25])
    assert searched(1e9, 1.0, max_trials=4) == (8.0, [1, 2, 4, 8])


def test_bounds_take_in_what_the_search_for_another_share_tried() -> None:
    attained = {8.0: 1.0, 24.0: 1.0, 30.0: 0.2, 32.0: 0.5, 48.0: 0.1}
    assert Bounds(24.0, 32.0).tightened(attained, 0.9) == Bounds(24.0, 30.0)
    attained[26.0] = 0.95
    assert Bounds(24.0, 32.0).tightened(attained, 0.9) == Bounds(26.0, 30.0)
    assert Bounds(24.0, 26.0).tightened(attained, 0.99) == Bounds(24.0, 26.0)
    assert Bounds(None, 8.0).tightened({8.0: 0.5, 4.0: 0.4}, 0.9) == Bounds(None, 4.0)
    assert Bounds(8.0, None).tightened({4.0: 0.4, 8.0: 1.0}, 0.9) == Bounds(8.0, None)


def test_each_second_of_a_run() -> None:
    outcomes = [outcome(0.2, [0.7, 1.5], 1.6), outcome(1.1, [2.5], 2.6, Failure.STREAM_ERROR)]
    first, second, third = timeline(outcomes, 0.0)
    assert first == {
        "second": 0, "arrivals": 1, "running": 1, "tokens": 1.0,
        "ttft_p50_ms": pytest.approx(500), "failed": 0,
    }  # fmt: skip
    assert (second["arrivals"], second["running"], second["tokens"]) == (1, 1, 1.0)
    assert (third["running"], third["tokens"], third["failed"]) == (0, 1.0, 1)
    assert timeline([], 0.0) == []
