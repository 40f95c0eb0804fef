"""The arithmetic, against cases worked out by hand."""

import pytest

from bench.harness.gpu.formulas import drift, highest, joules, mean, per_second


def test_energy_is_the_area_under_the_power_curve() -> None:
    # A ramp from 100 W to 300 W in 4 s (800 J), then 2 s at 300 W (600 J).
    assert joules([10.0, 14.0, 16.0], [100.0, 300.0, 300.0]) == pytest.approx(1400.0)


def test_energy_does_not_depend_on_how_densely_a_line_is_sampled() -> None:
    dense = [i / 10 for i in range(101)]
    assert joules(dense, [50 + 3 * t for t in dense]) == pytest.approx(joules([0, 10], [50, 80]))


@pytest.mark.parametrize("samples", [[], [1.0]])
def test_fewer_than_two_samples_have_no_energy(samples: list[float]) -> None:
    assert joules(samples, samples) == 0.0


def test_tokens_are_spread_over_their_request_and_cut_at_the_window() -> None:
    # 40 tokens from -2 s to 2 s: 10 a second, half of them before the window.
    assert per_second([(-2.0, 2.0, 40)], 0.0, 3.0) == [10.0, 10.0, 0.0]
    # 12 tokens in half a second, across a boundary.
    assert per_second([(100.75, 101.25, 12)], 100.0, 102.0) == pytest.approx([6.0, 6.0])


def test_no_token_inside_the_window_is_lost() -> None:
    spans = [(i * 0.37, i * 0.37 + 1.91, 64) for i in range(100)]
    end_s = spans[-1][1]
    assert sum(per_second(spans, 0.0, int(end_s) + 1)) == pytest.approx(6400)


def test_drift_compares_the_last_window_with_the_first() -> None:
    values = [100.0] * 60 + [250.0] * 60 + [90.0] * 60
    assert drift(values, 60) == pytest.approx(-0.1)
    assert drift(values, 91) is None
    assert drift([0.0, 0.0, 5.0, 5.0], 2) is None


def test_what_is_not_offered_does_not_count() -> None:
    assert mean([None, 2.0, 4.0]) == 3.0
    assert highest([None, 2.0, 4.0]) == 4.0
    assert mean([None]) is None
    assert highest([]) is None
