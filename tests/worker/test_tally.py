"""What a worker counts for others, while groups come and go."""

from coordinator.core.workers.meters import SpreadMeter
from transport.wire.spread import MAX_MEMBERS, MAX_NAMED
from worker.spread.tally import Tally


def test_the_last_members_are_named_however_they_are_spelt() -> None:
    tally = Tally()
    for number in range(MAX_NAMED):
        peers = [f"{chr(ord('z') - number % 26)}-{number}-{i}" for i in range(MAX_MEMBERS)]
        tally.joins(["me", *peers])
        tally.waited(peers, 0.25)
        for peer in peers:
            tally.was_late(peer)
    counts = tally.counts(MAX_MEMBERS)
    for named in (dict(counts.waits_ms), dict(counts.late)):
        assert len(named) == MAX_NAMED
        assert named.keys() >= set(peers)


def test_a_member_that_comes_back_is_counted_on() -> None:
    """What the coordinator takes for growth is what has come since."""
    tally, meter = Tally(), SpreadMeter()
    for number, members in enumerate((["b", "c"], ["c"], [], ["b", "c"])):
        tally.joins(members)
        for member in members:
            tally.was_late(member)
        meter.note(tally.counts(len(members)), float(number))
    assert meter.growth.late == (("b", 1), ("c", 1))
    assert meter.recent.late == (("b", 1), ("c", 2))
