"""A thread's pace and its end."""

import threading

import pytest

from telemetry.steady_thread import SteadyThread


def test_it_works_at_once_and_again_until_it_is_stopped() -> None:
    enough, rounds = threading.Event(), []

    def work() -> bool:
        rounds.append(None)
        if len(rounds) == 3:
            enough.set()
        return True

    thread = SteadyThread("t", work, period_s=0.001)
    thread.start()
    assert enough.wait(10.0)
    assert thread.stop(within_s=10.0)
    assert len(rounds) >= 3


def test_work_may_end_it() -> None:
    rounds: list[None] = []

    def work() -> bool:
        rounds.append(None)
        return False

    thread = SteadyThread("t", work, period_s=0.001)
    thread.start()
    assert thread.stop(within_s=10.0)
    assert len(rounds) == 1


def test_one_that_hangs_is_left_behind() -> None:
    begun, release = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return release.wait(30.0)

    thread = SteadyThread("t", work, period_s=1.0)
    thread.start()
    assert begun.wait(10.0)
    assert not thread.stop(within_s=0.01)
    release.set()


def test_a_period_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ValueError, match="period_s"):
        SteadyThread("t", lambda: True, period_s=0.0)
