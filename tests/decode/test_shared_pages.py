"""A handoff pulls only the pages that the decode worker does not keep already."""

from types import SimpleNamespace

import pytest
import torch

from decode.transfers import KVTransferQueue
from engine.cache.allocator import CacheAllocator
from engine.sequence import Sequence
from tests.simulation.fake_engine import LAYOUT
from tests.transport.exporters import own_cache
from transport.copy.pull import Copied, Wanted, copy_offer
from transport.copy.queue import CopyQueue
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire import prefix
from transport.wire.layout import PoolSize
from transport.wire.messages import Decode
from transport.wire.offers import Offer
from transport.wire.prefix import KnownPrefixes, PrefixKeys
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire

PAGE = LAYOUT.page_size
SIZE = PoolSize(8, 4)
TURN = packed(range(3 * PAGE + 5))  # kept: three pages, and five tokens of a fourth
NEXT = TURN + packed(range(100, 100 + PAGE))


def a_queue(allocator: CacheAllocator, puller: SimpleNamespace) -> KVTransferQueue:
    cache = own_cache(SIZE, seed=1)
    queue = KVTransferQueue(
        allocator, LAYOUT, puller, CopyQueue(cache, 10.0, lambda: 0.0), lambda: 0.0
    )
    queue.peers.add("p-1")
    return queue


class Site:
    def __init__(self, num_pages: int = 40) -> None:
        self.allocator = CacheAllocator(PoolSize(num_pages, 4), page_size=PAGE)
        self.wanted: list[Wanted] = []
        puller = SimpleNamespace(pull=self._pull)
        self.queue = a_queue(self.allocator, puller)

    def _pull(self, wanted: list[Wanted]) -> list[SimpleNamespace]:
        self.wanted += wanted
        copied = Copied(num_bytes=1, copy_s=0.0)
        return [SimpleNamespace(done=lambda: True, result=lambda: copied) for _ in wanted]

    def keep(self) -> tuple[int, ...]:
        """Keep the turn, as a sequence that has ended does."""
        allocation = self.allocator.reserve(LAYOUT.pages_for(len(TURN)))
        keys = PrefixKeys("m", "", TURN, PAGE)
        kept = self.allocator.turn_into_prefix(allocation, keys, len(TURN))
        assert kept is not None
        return kept.pages

    def pull(self, *, digest: str = "", salt: str = "") -> Sequence:
        sequence = self.ask(digest=digest, salt=salt)
        assert self.queue.start_pulls(num_growing=0)
        return sequence

    def ask(self, *, digest: str = "", salt: str = "") -> Sequence:
        num_pages = LAYOUT.pages_for(len(NEXT))
        offer = Offer("p-1", tuple(range(50, 50 + num_pages)), 2, 7, len(NEXT), digest)
        order = Decode(
            "r", 1, 1, to_wire(NEXT + packed([9])), len(NEXT), SamplingParams(), StopRule(9),
            offer=offer,
        )  # fmt: skip
        sequence = Sequence.of(order, 0.0)
        sequence.keys = PrefixKeys("m", salt, sequence.token_ids, PAGE)
        self.queue.add(sequence, offer, 0.0)
        return sequence


def test_kept_pages_are_shared_and_the_rest_is_pulled() -> None:
    site = Site()
    kept = site.keep()
    sequence = site.pull()
    (wanted,) = site.wanted
    assert sequence.allocation is not None
    assert tuple(sequence.allocation.pages[:3]) == kept[:3]
    assert kept[3] not in sequence.allocation.pages, "a page that is not full is not shared"
    assert wanted.offer.block_table == (53, 54)
    assert wanted.block_table == tuple(sequence.allocation.pages[3:5])
    assert wanted.state_slot == sequence.allocation.slot.id
    assert site.allocator.check() == ""
    site.queue.done()
    site.queue.release(sequence)
    assert site.allocator.check() == ""
    assert site.allocator.free_pages == 40


@pytest.mark.parametrize(
    "pulled", [{"digest": "0"}, {"salt": "another"}], ids=["verified", "salted"]
)
def test_otherwise_all_is_pulled(pulled: dict[str, str]) -> None:
    site = Site()
    site.keep()
    site.pull(**pulled)
    assert len(site.wanted[0].offer.block_table) == 5


def test_a_handoff_of_kept_pages_alone_pulls_the_state() -> None:
    """Through the real copy of a CPU worker."""
    caches = [
        CacheTensors.over(
            torch.zeros(Region.of(LAYOUT, SIZE).size_bytes, dtype=torch.uint8), LAYOUT, SIZE
        )
        for _ in range(2)
    ]
    here, peer = caches
    peer.epochs[2], peer.recurrent[2] = 7, 5.0
    offer = Offer("p-1", (), 2, 7, 2 * PAGE)
    copied = copy_offer(here, peer, Wanted(offer, (), 3))
    assert copied.num_bytes == LAYOUT.state_slot_bytes
    assert here.recurrent[3].item() == 5.0


def test_what_is_kept_gives_way_where_the_memory_is_short() -> None:
    site = Site(num_pages=6)
    site.keep()
    sequence = site.pull()
    assert len(sequence.page_holds[0]) == 5
    assert site.allocator.check() == ""


def test_a_handoff_that_waits_for_memory_looks_its_prefix_up_once_until_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups: list[int] = []
    longest = KnownPrefixes.longest

    def counted(known: KnownPrefixes, keys: PrefixKeys, most: int) -> tuple[bytes, int] | None:
        lookups.append(most)
        return longest(known, keys, most)

    monkeypatch.setattr(KnownPrefixes, "longest", counted)
    site = Site(num_pages=6)
    other = site.allocator.reserve(6)
    site.ask()
    for _ in range(5):
        assert not site.queue.start_pulls(num_growing=0)
    assert len(lookups) == 1
    keys = PrefixKeys("m", "", TURN, PAGE)
    assert site.allocator.turn_into_prefix(other, keys, len(TURN)) is not None
    assert site.queue.start_pulls(num_growing=0)
    assert site.wanted[0].offer.block_table == (53, 54), "what is kept meanwhile is found"


def test_pages_that_a_handoff_shares_with_a_running_sequence_are_not_counted_against_it() -> None:
    site = Site(num_pages=5 + 4)
    site.keep()
    first, second = site.pull(), site.pull()
    assert first.allocation is not None
    assert second.allocation is not None
    assert first.allocation.pages[:3] == second.allocation.pages[:3]
    assert site.allocator.free_pages == 2
    assert site.allocator.num_pages_shared == 3
    site.queue.done()
    site.queue.release(first)
    assert site.allocator.num_pages_shared == 0
    assert site.allocator.check() == ""


def test_state_slots_are_published_behind_the_copies() -> None:
    site = Site()
    published: list[int] = []
    site.allocator = CacheAllocator(
        PoolSize(40, 4), page_size=PAGE, on_reserve=lambda slot: published.append(slot.id)
    )
    puller = SimpleNamespace(pull=site._pull)
    site.queue = a_queue(site.allocator, puller)
    sequence, ended = site.pull(), site.pull()
    assert sequence.allocation is not None
    assert len(site.wanted) == 2
    assert published == []
    site.queue.done()
    site.queue.release(ended)
    site.queue.publish()
    site.queue.publish()
    assert published == [sequence.allocation.slot.id], "once, and not for a slot that is free again"


def test_a_prompt_that_begins_with_nothing_kept_is_hashed_when_its_copy_is_enqueued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_hashed = at_copy = 0
    blake2b = prefix.blake2b

    def counting(*args, **kwargs):
        nonlocal num_hashed
        num_hashed += 1
        return blake2b(*args, **kwargs)

    def pull(wanted: list[Wanted]) -> list[SimpleNamespace]:
        nonlocal at_copy
        at_copy = num_hashed
        return site._pull(wanted)

    site = Site()
    site.keep()
    site.queue._puller = SimpleNamespace(pull=pull)
    monkeypatch.setattr(prefix, "blake2b", counting)
    site.pull(salt="another tenant")
    assert at_copy == 3, "the model, the salt and the first page"
    assert num_hashed == 2 + len(NEXT) // PAGE
