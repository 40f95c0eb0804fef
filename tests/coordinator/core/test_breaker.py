"""A breaker opens after a few faults, probes later each time, and closes when a probe works."""

import pytest

from coordinator.core.settings import BreakerSettings
from coordinator.core.workers.breaker import Breaker

SETTINGS = BreakerSettings(
    num_faults=3, window_s=60.0, pause_s=1.0, max_pause_s=60.0, max_failed_probes=5
)


def opened(at: float = 10.0) -> Breaker:
    breaker = Breaker(SETTINGS)
    assert [breaker.fault(at, placed_at=at) for _ in range(3)] == [False, False, True]
    return breaker


def test_it_opens_after_a_few_faults_in_a_short_time() -> None:
    breaker = Breaker(SETTINGS)
    for now in (0.0, 50.0, 100.0, 150.0):
        assert not breaker.fault(now, now)
    assert breaker.fault(155.0, 155.0)
    assert breaker.state == "open"


def test_one_probe_at_a_time_and_it_closes_once_that_is_computed() -> None:
    breaker = opened(at=10.0)
    assert not breaker.takes_probe(10.9)
    assert breaker.takes_probe(11.0)
    under_way = [True]
    breaker.probe(lambda: under_way[0])
    assert (breaker.state, breaker.takes_probe(99.0)) == ("half-open", False)
    under_way[0] = False  # its client left
    assert (breaker.state, breaker.takes_probe(99.0)) == ("open", True)
    assert not breaker.worked(99.0, placed_at=9.0), "placed before it opened"
    assert breaker.worked(99.0, placed_at=11.0)
    assert breaker.closed


def test_the_pause_doubles_with_each_failed_probe_until_it_is_hopeless() -> None:
    breaker, now, pauses = opened(at=0.0), 0.0, [1.0]
    while not breaker.hopeless:
        now += breaker.pause_s
        assert breaker.takes_probe(now)
        assert not breaker.fault(now + 0.1, placed_at=-1.0), "a request from before says nothing"
        assert breaker.fault(now, placed_at=now)
        pauses.append(breaker.pause_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_a_breaker_that_opens_again_soon_after_closing_pauses_longer() -> None:
    breaker = opened(at=0.0)
    breaker.worked(1.0, placed_at=1.0)
    for _ in range(3):
        breaker.fault(20.0, 20.0)
    assert breaker.pause_s == 2.0
    breaker.worked(30.0, placed_at=25.0)
    for _ in range(3):
        breaker.fault(200.0, 200.0)
    assert breaker.pause_s == 1.0, "it had worked for long"


def test_shared_faults_open_the_breaker_of_a_worker_that_fails_with_two_partners() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(9):
        assert not breaker.fault(1.0, 1.0, partner="p-1", num_partners=2)
    assert breaker.fault(1.0, 1.0, partner="p-2", num_partners=2)
    breaker = Breaker(SETTINGS)
    faults = [breaker.fault(1.0, 1.0, partner="p-1", num_partners=1) for _ in range(3)]
    assert faults == [False, False, True], "there is no other partner to fail with"


def test_a_computed_request_takes_shared_faults_back_and_no_others() -> None:
    breaker = Breaker(SETTINGS)
    breaker.fault(1.0, 1.0)
    breaker.fault(1.0, 1.0)
    for _ in range(5):
        breaker.fault(1.0, 1.0, partner="p-1", num_partners=2)
    breaker.worked(2.0, 1.5)
    assert not breaker.fault(2.0, 2.0, partner="p-2", num_partners=2)
    assert breaker.fault(2.0, 2.0)


def test_the_last_of_its_kind_stays_closed_and_opens_when_another_has_come() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(5):
        assert not breaker.fault(1.0, 1.0, may_open=False)
    assert breaker.fault(2.0, 2.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("num_faults", 0), ("window_s", 0.0), ("pause_s", 0.0), ("pause_s", 61.0),
     ("max_failed_probes", 0)],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_is_named(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting):
        BreakerSettings(**{setting: value})
