from decode.lateness import Lateness
from decode.spread_record import Record

STILL = Record(1, 5)


def test_a_late_member_counts_again_once_its_record_changes() -> None:
    lateness = Lateness(1.0, 4.0, 1_000)
    lateness.missed([1], [STILL, STILL], now=0.0)
    lateness.look([STILL, STILL])
    assert [lateness.is_late(place) for place in (0, 1)] == [False, True]
    assert lateness.keeps_away(9.0), "the late one stands still"
    lateness.look([STILL, Record(1, 6)])
    assert not lateness.is_late(1)
    assert lateness.keeps_away(0.9)
    assert not lateness.keeps_away(1.0)


def test_each_further_time_takes_twice_as_long_until_it_is_forgiven() -> None:
    lateness = Lateness(1.0, 4.0, forgiven_after=2)

    def away_s(now: float) -> float:
        lateness.back_off(now)
        return next(s for s in (1.0, 2.0, 4.0) if not lateness.keeps_away(now + s))

    assert [away_s(now) for now in (10.0, 20.0, 30.0, 40.0)] == [1.0, 2.0, 4.0, 4.0]
    lateness.launched()
    assert away_s(50.0) == 4.0, "one round is too few, and a new wait counts from 0"
    lateness.launched()
    assert away_s(60.0) == 4.0
    lateness.launched()
    lateness.launched()
    assert away_s(70.0) == 1.0
