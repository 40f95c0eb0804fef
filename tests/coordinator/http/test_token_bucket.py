"""The token bucket: what it may admit over any span of time, whatever is asked of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.http.auth.accounts import TokenBucket, Unlimited


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


STEPS = st.lists(st.tuples(st.floats(0.0, 200.0), st.integers(1, 500)), min_size=1, max_size=60)


@given(st.integers(1, 10_000), STEPS)
def test_no_span_admits_more_than_its_share(
    per_minute: int, steps: list[tuple[float, int]]
) -> None:
    """One burst of a minute's worth, then the rate; only the last one admitted overdraws."""
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    taken: list[tuple[float, int]] = []
    for gap_s, amount in steps:
        clock.now += gap_s
        if bucket.wait_s() == 0.0:
            bucket.take(amount)
            taken.append((clock.now, amount))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            span_min = (taken[last][0] - taken[first][0]) / 60
            used = sum(amount for _, amount in taken[first:last])
            assert used <= per_minute * (1 + span_min) + 1e-6


@given(st.integers(1, 10_000), st.integers(0, 50_000), st.floats(0.0, 500.0))
def test_after_the_wait_it_admits_and_not_before(
    per_minute: int, amount: int, gap_s: float
) -> None:
    clock = Clock()
    bucket = TokenBucket(per_minute, clock)
    bucket.take(amount)
    clock.now += gap_s
    wait_s = bucket.wait_s()
    if wait_s > 1e-3:
        clock.now += wait_s / 2
        assert bucket.wait_s() > 0.0
        clock.now += wait_s / 2
    else:
        clock.now += wait_s
    assert bucket.wait_s() == pytest.approx(0.0, abs=1e-6)


@given(st.integers(1, 1_000), st.lists(st.integers(1, 100), max_size=20))
def test_rest_does_not_forgive_what_is_taken_after_it(per_minute: int, amounts: list[int]) -> None:
    clock = Clock()
    rested, fresh = TokenBucket(per_minute, clock), None
    clock.now += 10_000.0
    fresh = TokenBucket(per_minute, clock)
    for amount in amounts:
        rested.take(amount)
        fresh.take(amount)
    assert rested.wait_s() == fresh.wait_s()


def test_examples() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock)
    for _ in range(60):
        assert bucket.wait_s() == 0.0
        bucket.take(1)
    assert bucket.wait_s() == pytest.approx(1.0)
    bucket.take(59)
    assert bucket.wait_s() == pytest.approx(60.0)


def test_unlimited_never_waits() -> None:
    quota = Unlimited()
    quota.take(10**12)
    assert quota.wait_s() == 0.0
