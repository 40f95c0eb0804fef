"""The load of the last hour."""

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.contract import LoadSeries
from coordinator.core.load_history import NUM_PERIODS, PERIOD_S, Latencies, LoadHistory
from tests.coordinator.fake_core import ClientOf, Says


def test_a_period_tells_rates_quantiles_and_the_highest_level() -> None:
    history = LoadHistory()
    history.level(100.0, queued=2, running=1)
    for n in range(1, 101):
        history.first_token(101.0, ttft_s=n / 100, num_prompt=30)
    for _ in range(900):
        history.next_token(102.0)
    history.finished(103.0, tpot_s=0.02)
    history.handed_off(103.0, total_s=0.004, num_bytes=5000)
    history.level(109.0, queued=7, running=4)
    history.level(109.5, queued=1, running=5)
    assert history.series(109.9).points == (), "the period is not over"
    series = history.series(110.0)
    (point,) = series.points
    assert (series.period_s, series.started_at) == (PERIOD_S, 100.0)
    assert (point.output_tokens_per_s, point.prompt_tokens_per_s) == (100.0, 300.0)
    assert (point.queued, point.running) == (7, 5)
    assert (point.handoffs_per_s, point.handoff_bytes_per_s) == (0.1, 500.0)
    assert point.ttft_p50_s == pytest.approx(0.5, rel=0.01)
    assert point.ttft_p99_s == pytest.approx(0.99, rel=0.01)
    assert point.tpot_p50_s == pytest.approx(0.02, rel=0.01)
    assert point.tpot_p50_s == point.tpot_p99_s
    assert point.handoff_p50_s == pytest.approx(0.004, rel=0.01)


def test_an_idle_time_has_points_without_latencies() -> None:
    history = LoadHistory()
    history.first_token(0.0, ttft_s=0.1, num_prompt=1)
    points = history.series(35.0).points
    assert [point.output_tokens_per_s for point in points] == [0.1, 0.0, 0.0]
    assert [point.ttft_p50_s is None for point in points] == [False, True, True]


@given(st.lists(st.floats(0, 3 * PERIOD_S * NUM_PERIODS), min_size=1, max_size=30))
def test_an_hour_is_kept_whatever_the_gaps(gaps: list[float]) -> None:
    history, now = LoadHistory(), 1000.0
    for gap in gaps:
        now += gap
        history.next_token(now)
        series = history.series(now)
        assert len(series.points) <= NUM_PERIODS
        over = series.started_at + PERIOD_S * len(series.points)
        assert over == pytest.approx(now, abs=PERIOD_S + 1e-3), "the newest closed period ends now"
        assert over <= now + 1e-6


@given(st.lists(st.floats(1e-5, 1e3), min_size=1), st.sampled_from((0.5, 0.99)))
def test_a_quantile_is_within_a_bin_of_the_exact_one(values: list[float], share: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    rank = next(n for n in range(1, len(values) + 1) if n >= share * len(values))
    assert latencies.quantile(share) == pytest.approx(sorted(values)[rank - 1], rel=0.0105)


async def test_it_is_served(says: Says, client_of: ClientOf) -> None:
    history = LoadHistory()
    history.level(0.0, 1, 2)
    client: httpx.AsyncClient = client_of(says(load=history.series(20.0).points))
    answer = (await client.get("/status/history")).content
    series = msgspec.json.decode(answer, type=LoadSeries)
    assert [(point.queued, point.running) for point in series.points] == [(1, 2), (0, 0)]
