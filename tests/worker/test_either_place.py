"""A worker of any role in spread groups: it decodes in some and lends to others, by one record."""

from secrets import token_hex

import pytest

from decode.spread_record import Record, Stance
from engine.cache.allocator import CacheAllocator
from engine.spread.interface import Lent
from tests.worker.test_lender import Engine
from tests.worker.test_membership import Spreader
from transport.wire.layout import PoolSize
from transport.wire.spread import SpreadExport, SpreadGroup, SpreadJoined, SpreadMember
from worker.spread.either_place import EitherPlace
from worker.spread.lender import Lender
from worker.spread.membership import Membership
from worker.spread.records import OwnRecord, PeerRecord, Records


class Spreads(Spreader):
    """Its group has members with exports of other tests."""

    def join(self, generation: int, rank: int, exports: object, num_lenders: int) -> None:
        self.joined.append((generation, rank, num_lenders))


def test_it_lends_where_it_is_one_of_the_last_and_decodes_elsewhere() -> None:
    name, other = f"w-{token_hex(4)}", OwnRecord(f"d-{token_hex(4)}")
    own, spreads, lends = OwnRecord(name), Spreads(name), Engine()
    lends.own, lends.export = PeerRecord(own.handle), spreads.export
    lends.answer = Lent(took_part=True)
    place = EitherPlace(
        name,
        Membership(spreads, name, "1", Records(own)),
        Lender(lends, name, Records(own)),
    )
    mine = SpreadMember(name, place.export)
    peer = SpreadMember("d", SpreadExport(other.handle, spreads.export))
    empty = CacheAllocator(PoolSize(1, 1))

    assert place.join(SpreadGroup(5, (mine, peer))) == SpreadJoined(5)
    assert spreads.joined == [(5, 0, 0)]
    place.record_step(0.25, spread=False)

    assert place.join(SpreadGroup(6, (peer, mine), 1)) == SpreadJoined(6)
    assert (spreads.num_left, lends.joined) == (1, [(6, 1, 1)])
    other.write(Record(6, 3, Stance.COMMITTED, 2))
    place.when_idle(empty, willing=True, empty=True)
    assert [plan.generation for plan in lends.lent] == [6]
    place.decide(7, willing=True)
    assert _read(own).stance is Stance.UNAVAILABLE, "nobody counts on it while it decodes"
    counts = place.counts()
    assert (counts.num_steps, counts.num_local) == (1, 1), "those of both places"

    place.leave()
    assert lends.joined[-1] == (0, 0, 0)
    assert _read(own).generation == 0
    with pytest.raises(AssertionError, match="lender"):
        place.launch(None, None)  # type: ignore[arg-type]
    place.close()
    other.close()


def _read(own: OwnRecord) -> Record:
    record = PeerRecord(own.handle).read()
    assert record is not None
    return record
