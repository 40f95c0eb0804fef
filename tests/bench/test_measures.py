"""The formulas behind the figures."""

import pytest

from bench.__main__ import Target
from bench.measures import growth, longest_gap, outside_model_s, paired_ratio, percentile, slope


def test_percentile_is_linear_between_neighbours() -> None:
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)


def test_slope_of_a_line_and_of_a_point() -> None:
    assert slope([1, 2, 3], [5, 7, 9]) == pytest.approx(2.0)
    assert slope([1, 1], [5, 7]) == 0.0


def test_growth_counts_from_the_warm_up() -> None:
    seen = [100, 200, 300, 400, 500, 600, 700, 800]
    grown = growth(seen, [10, 90, 100, 100, 100, 101, 101, 101], warm_up=300)
    assert (grown.first_mib, grown.last_mib, grown.mib) == (100, 101, 1)
    assert grown.share == pytest.approx(0.01)
    assert 0 < grown.slope_mib_per_1000 < 5


def test_a_slow_round_cancels_out() -> None:
    assert paired_ratio([20, 2, 20], [10, 1, 10]) == 2.0


def test_outside_the_model() -> None:
    assert outside_model_s(0.020, 0.010, 2, 0.003) == pytest.approx(0.004)


def test_targets_have_a_side() -> None:
    assert Target("speed", 1.5, "at least", 1.5, "×").met
    assert not Target("speed", 1.49, "at least", 1.5, "×").met
    assert Target("lost", 0, "at most", 0, "").met
    assert not Target("lost", 1, "at most", 0, "").met


def test_the_longest_gap_ends_after_a_time() -> None:
    at_s = [0.0, 5.0, 6.0, 8.0, 9.0]
    assert longest_gap(at_s, 5.5) == (2.0, 8.0)
    assert longest_gap(at_s, 9.0) == (0.0, 9.0)
