"""The queue of copies under way, with copies that end when the test says so."""

import pytest

from tests.transport.exporters import own_cache
from transport.copy.digest import digest
from transport.copy.pull import Copied
from transport.copy.queue import CopyQueue, Landing
from transport.wire.errors import StaleEpoch
from transport.wire.layout import PoolSize

TIMEOUT_S = 10.0
NUM_TOKENS = 20
PAGES, SLOT = [3, 1], 2


class HandPull:
    """A copy that is done when the test says so; a wait takes the time that it is given."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self.finished = self.stale = False
        self.takes_s = 1e9

    def done(self) -> bool:
        return self.finished

    def wait(self, timeout_s: float) -> bool:
        took_s = 0.0 if self.finished else min(timeout_s, self.takes_s)
        self.finished |= self.takes_s <= timeout_s
        self._site.now += took_s
        return self.finished

    def result(self) -> Copied:
        assert self.finished, "result of a copy still under way"
        if self.stale:
            raise StaleEpoch("state slot 2 changed hands")
        return Copied(num_bytes=7, copy_s=0.5)


class Site:
    def __init__(self) -> None:
        self.now = 0.0
        self.cache = own_cache(PoolSize(5, 3), seed=1)
        self.queue = CopyQueue[str](self.cache, TIMEOUT_S, lambda: self.now)

    def copy(self, owner: str, checked: str = "") -> HandPull:
        pull = HandPull(self)
        self.queue.add(owner, pull, Landing(PAGES, SLOT, NUM_TOKENS, checked))
        return pull

    def digest(self) -> str:
        return digest(self.cache, tuple(PAGES), SLOT, NUM_TOKENS)


def test_copies_leave_the_queue_when_they_have_ended_oldest_first() -> None:
    site = Site()
    a, _, c = (site.copy(name) for name in "abc")
    assert site.queue.ended() == []
    a.finished = c.finished = True
    ended = site.queue.ended()
    assert [each.owner for each in ended] == ["a", "c"]
    assert [each.copied for each in ended] == [Copied(7, 0.5)] * 2
    assert list(site.queue) == ["b"]
    assert site.queue.ended() == []


def test_a_stale_copy_is_counted_and_says_how_its_source_changed() -> None:
    site = Site()
    pull = site.copy("a")
    pull.finished = pull.stale = True
    (ended,) = site.queue.ended()
    assert ended.copied is None
    assert ended.stale == "state slot 2 changed hands"
    assert site.queue.num_stale == 1
    assert len(site.queue) == 0


@pytest.mark.parametrize("where", ["kv", "conv", "recurrent"])
def test_one_changed_byte_is_damage_if_the_source_has_a_digest(where: str) -> None:
    site = Site()
    for name, checked in (("checked", site.digest()), ("unchecked", "")):
        site.copy(name, checked).finished = True
    ended = site.queue.ended()
    assert [each.damaged() for each in ended] == [False, False]
    place = PAGES[1] if where == "kv" else SLOT
    getattr(site.cache, where)[place].view(-1)[3] += 1.0
    assert [each.damaged() for each in ended] == [True, False]


def test_a_copy_past_its_deadline_stays_until_it_has_ended() -> None:
    site = Site()
    late = site.copy("late")
    site.now += 1.0
    site.copy("later")
    assert site.queue.overdue() == []
    site.now += TIMEOUT_S - 1.0
    assert site.queue.overdue() == ["late"]
    assert site.queue.on_time() == ["later"]
    assert site.queue.ended() == [], "the device still writes its memory"
    late.finished = True
    assert [each.owner for each in site.queue.ended()] == ["late"]
    assert site.queue.overdue() == []


def test_one_deadline_holds_for_a_wait_for_all_copies() -> None:
    site = Site()
    for takes_s in (1.0, 1.5, 9.0):
        site.copy("x").takes_s = takes_s
    assert not site.queue.wait(3.0)
    assert site.now == 3.0
    assert len(site.queue.ended()) == 2
    assert site.queue.wait(20.0)


def test_a_wait_for_nothing_is_over_at_once() -> None:
    assert Site().queue.wait(0.0)
