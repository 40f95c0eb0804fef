"""When a service that died starts again."""

from hypothesis import given
from hypothesis import strategies as st

from deploy.managed_process import RestartPolicy


def test_delays_double_up_to_the_bound():
    policy = RestartPolicy(first_s=1.0, max_s=5.0, steady_s=60.0)
    assert [policy.delay_s(ready_for_s=1.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_delays_begin_anew_after_a_process_that_was_ready_for_long():
    policy = RestartPolicy(first_s=1.0, steady_s=60.0)
    assert [policy.delay_s(ready_for_s=lived) for lived in (1.0, 1.0, 61.0)] == [1.0, 2.0, 1.0]


def test_gives_up_after_failed_starts_in_a_row():
    policy = RestartPolicy(max_failed_starts=3)
    assert policy.delay_s(ready_for_s=None) is not None
    assert policy.delay_s(ready_for_s=None) is not None
    assert policy.delay_s(ready_for_s=0.1) is not None
    assert policy.delay_s(ready_for_s=None) is not None
    assert policy.delay_s(ready_for_s=None) is not None
    assert policy.delay_s(ready_for_s=None) is None


def test_delay_stays_bounded_for_ever():
    policy = RestartPolicy()
    delays = [policy.delay_s(ready_for_s=None, keep_trying=True) for _ in range(3000)]
    assert max(delay or 0.0 for delay in delays) == policy.max_s


def test_a_service_that_asks_to_try_again_has_not_failed():
    policy = RestartPolicy(retry_s=2.0, max_failed_starts=1)
    assert {policy.delay_s(ready_for_s=None, try_again=True) for _ in range(20)} == {2.0}
    assert policy.delay_s(ready_for_s=0.1) == policy.first_s
    assert policy.delay_s(ready_for_s=None) is None


def test_always_another_start_while_keep_trying():
    policy = RestartPolicy(max_failed_starts=3)
    delays = [policy.delay_s(ready_for_s=None, keep_trying=True) for _ in range(20)]
    assert delays[-1] == policy.max_s
    assert policy.delay_s(ready_for_s=None, keep_trying=False) is None


def test_a_planned_end_is_followed_by_a_start_at_once():
    policy = RestartPolicy(first_s=1.0)
    assert policy.delay_s(ready_for_s=5.0, planned=True) == 0.0
    assert policy.delay_s(ready_for_s=5.0) == 1.0
    assert policy.delay_s(ready_for_s=0.1, planned=True) == 2.0, "it only looks planned"


def test_three_starts_a_minute_are_at_once_then_delays_stay_short():
    """As the coordinator's."""
    policy = RestartPolicy(num_at_once=3, max_s=5.0)
    delays = [policy.delay_s(ready_for_s=1.0) for _ in range(9)]
    assert delays == [0.0, 0.0, 0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert policy.delay_s(ready_for_s=60.0) == 0.0, "a minute has passed"


def test_deaths_that_are_far_apart_are_each_followed_by_a_start_at_once():
    policy = RestartPolicy(num_at_once=3, max_s=5.0)
    assert {policy.delay_s(ready_for_s=21.0) for _ in range(50)} == {0.0}


@given(st.lists(st.floats(0.0, 100.0) | st.none(), max_size=60))
def test_no_more_than_three_starts_a_minute_are_at_once(lives):
    policy = RestartPolicy(num_at_once=3, max_s=5.0)
    now_s, at_once = 0.0, []
    for ready_for_s in lives:
        now_s += ready_for_s or 0.0
        delay_s = policy.delay_s(ready_for_s=ready_for_s, keep_trying=True)
        assert 0.0 <= delay_s <= 5.0
        if delay_s == 0.0:
            at_once.append(now_s)
        now_s += delay_s
    assert all(after - before >= 59.9 for before, after in zip(at_once, at_once[3:], strict=False))
