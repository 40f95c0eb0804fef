"""The rate of a worker's tokens, by a clock that the test sets."""

from coordinator.core.workers.meters import TOKENS_WINDOW_S, TokenMeter


def test_a_steady_flow_has_its_rate_and_a_stop_is_zero_after_the_window() -> None:
    meter = TokenMeter()
    for tenth in range(100):
        meter.add(3, 1000 + tenth / 10)
    assert meter.rate(1010.0) == 30.0
    assert meter.rate(1012.9) == 18.0, "two of the five seconds brought none"
    assert meter.rate(1010.0 + TOKENS_WINDOW_S) == 0.0


def test_the_second_under_way_counts_once_it_is_over() -> None:
    meter = TokenMeter()
    meter.add(50, 7.1)
    assert meter.rate(7.9) == 0.0
    assert meter.rate(8.0) == 50 / TOKENS_WINDOW_S


def test_what_is_older_than_the_window_is_forgotten_by_the_next_use_of_its_place() -> None:
    meter = TokenMeter()
    meter.add(1_000, 0.0)
    meter.add(5, 600.0)
    assert meter.rate(601.0) == 1.0
    assert TokenMeter().rate(0.0) == 0.0
