"""When a service that died starts again."""

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
