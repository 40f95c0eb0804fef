"""When a dead service may start again."""

from deploy.restarts import Restarts


def test_delays_double_up_to_the_bound():
    restarts = Restarts(first_s=1.0, max_s=5.0, steady_s=60.0)
    assert [restarts.died(ready_for_s=1.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_steady_life_starts_over():
    restarts = Restarts(first_s=1.0, steady_s=60.0)
    assert [restarts.died(ready_for_s=lived) for lived in (1.0, 1.0, 61.0)] == [1.0, 2.0, 1.0]


def test_gives_up_after_failed_starts_in_a_row():
    restarts = Restarts(max_failed_starts=3)
    assert restarts.died(ready_for_s=None) is not None
    assert restarts.died(ready_for_s=None) is not None
    assert restarts.died(ready_for_s=0.1) is not None
    assert restarts.died(ready_for_s=None) is not None
    assert restarts.died(ready_for_s=None) is not None
    assert restarts.died(ready_for_s=None) is None


def test_delay_stays_bounded_for_ever():
    restarts = Restarts(max_failed_starts=None)
    assert max(restarts.died(ready_for_s=None) or 0.0 for _ in range(3000)) == restarts.max_s


def test_what_lacks_something_tries_again_at_an_even_pace_and_has_not_failed():
    restarts = Restarts(retry_s=2.0, max_failed_starts=1)
    assert {restarts.died(ready_for_s=None, try_again=True) for _ in range(20)} == {2.0}
    assert restarts.died(ready_for_s=0.1) == restarts.first_s
    assert restarts.died(ready_for_s=None) is None


def test_always_another_start_while_others_serve():
    restarts = Restarts(max_failed_starts=3)
    delays = [restarts.died(ready_for_s=None, others_serve=True) for _ in range(20)]
    assert delays[-1] == restarts.max_s
    assert restarts.died(ready_for_s=None, others_serve=False) is None


def test_a_planned_end_is_followed_at_once_and_is_no_death():
    restarts = Restarts(first_s=1.0)
    assert restarts.died(ready_for_s=5.0, planned=True) == 0.0
    assert restarts.died(ready_for_s=5.0) == 1.0
    assert restarts.died(ready_for_s=0.1, planned=True) == 2.0, "it only looks planned"
