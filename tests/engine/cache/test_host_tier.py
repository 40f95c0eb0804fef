"""Prefixes that leave the device are in host memory, whatever ends when."""

import pytest

from engine.cache import host_tier
from engine.cache.eviction import GAP
from engine.cache.host_tier import HostTier
from tests.engine.late_host_copies import LateHostCopier
from tests.engine.prefix_device import PAGE, PrefixDevice, keys_of
from tests.transport.exporters import PLAIN as LAYOUT
from transport.copy.host_copy import ThreadHostCopier
from transport.wire.layout import PoolSize

STATE_BLOCKS = 4
TOKENS = tuple(range(500, 500 + 10 * PAGE))


ALL, NONE = PoolSize(30, 6), PoolSize(0, 0)
"""How much of the device is to be free."""


class Site:
    """A device and a host tier whose copies end when the test says so. All prefixes are to leave
    the device."""

    def __init__(self, num_blocks: int = 60, num_pieces: int = 1) -> None:
        self.device = PrefixDevice(ALL)
        self.copier = LateHostCopier(self.device.cache, num_pieces, num_blocks)
        self.tier = HostTier(LAYOUT, self.copier, self.device.allocator, ALL)
        self.device.allocator.prefixes.on_keep = self.tier.returned

    def settle(self) -> None:
        for _ in range(50):
            self.tier.poll()
            self.copier.end_all()
            if not self.tier.copying:
                return
        raise AssertionError("copies without an end")

    def comes_back(self, tokens: tuple[int, ...]) -> bool:
        kept = self.tier.longest(keys_of(tokens), len(tokens))
        if kept is None or kept.num_tokens != len(tokens):
            return False
        allocation = self.device.allocator.reserve(LAYOUT.pages_for(len(tokens)))
        self.tier.fetch(kept, tuple(allocation.pages), allocation.slot.id)
        self.settle()
        right = self.device.holds(allocation.pages, allocation.slot.id, tokens)
        self.device.allocator.release(allocation)
        return right


@pytest.mark.parametrize("num_tokens", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 5 * PAGE + 3])
def test_a_prefix_comes_back_after_its_eviction(num_tokens: int) -> None:
    device = PrefixDevice(ALL)
    tier = HostTier(LAYOUT, ThreadHostCopier(device.cache, 1 << 20), device.allocator, ALL)
    tokens = TOKENS[:num_tokens]
    device.keep_only(tokens)
    tier.poll()
    wait_for_saves(tier)
    assert not len(device.allocator.kept)
    kept = tier.longest(keys_of(TOKENS), len(TOKENS))
    assert kept is not None
    assert kept.num_tokens == num_tokens
    allocation = device.allocator.reserve(8)
    pull = tier.fetch(kept, tuple(allocation.pages), allocation.slot.id)
    assert pull.wait(10)
    assert pull.result().num_bytes > num_tokens
    assert device.holds(allocation.pages, allocation.slot.id, tokens)
    tier.poll()
    assert not tier.copying
    assert tier.check() == ""
    assert tier.close()


def wait_for_saves(tier: HostTier) -> None:
    pull = tier._saving.pull
    assert pull is not None
    assert pull.wait(10)
    tier.poll()
    assert not tier.copying


def test_pages_that_prefixes_share_are_stored_once() -> None:
    site = Site()
    allocation = site.device.run(TOKENS)
    places = [2 * PAGE, 4 * PAGE + 5, 6 * PAGE]
    for place in places[:2]:
        site.device.keep(allocation, TOKENS, place)
    site.settle()
    assert site.tier.used_bytes == (5 + 2 * STATE_BLOCKS) * site.copier.block_bytes
    site.device.keep(allocation, TOKENS, places[2])
    site.settle()
    # The partial page was copied with what it had; as a whole page it has a block of its own.
    assert site.tier.used_bytes <= (7 + 3 * STATE_BLOCKS) * site.copier.block_bytes
    site.device.allocator.release(allocation)
    assert all(site.comes_back(TOKENS[:place]) for place in places)


def test_pages_are_found_by_what_they_hold_not_by_where_they_were() -> None:
    site = Site()
    site.device.keep_only(TOKENS[: 4 * PAGE])
    site.settle()
    site.device.keep_only(TOKENS[: 6 * PAGE])
    site.settle()
    assert site.tier.used_bytes == (6 + 2 * STATE_BLOCKS) * site.copier.block_bytes
    site.device.evict_all()
    assert site.comes_back(TOKENS[: 4 * PAGE])
    assert site.comes_back(TOKENS[: 6 * PAGE])


def test_a_prefix_evicted_at_once_while_it_is_copied_or_before_is_not_kept() -> None:
    site = Site()
    site.device.keep_only(TOKENS[:PAGE])
    site.tier.poll()
    site.device.keep_only(TOKENS[: 2 * PAGE])
    site.device.evict_all()
    site.settle()
    assert site.tier.num_kept == 0
    assert site.tier.used_bytes == 0
    assert site.tier.check() == ""


def test_a_page_copied_for_an_evicted_prefix_serves_the_other_one_that_has_it() -> None:
    site = Site()
    allocation = site.device.run(TOKENS[: 4 * PAGE])
    first = site.device.keep(allocation, TOKENS, 2 * PAGE)
    second = site.device.keep(allocation, TOKENS, 4 * PAGE)
    assert first is not None
    assert second is not None
    site.device.allocator.release(allocation)
    site.tier.poll()
    site.device.allocator.prefixes.evict(first)
    site.settle()
    assert site.tier.num_kept == 1
    assert site.comes_back(TOKENS[: 4 * PAGE])


def test_the_least_recently_used_prefix_makes_room() -> None:
    site = Site(num_blocks=2 * (STATE_BLOCKS + 1))
    prompts = [tuple(range(base, base + PAGE)) for base in (0, 100, 200)]
    for prompt in prompts[:2]:
        site.device.keep_only(prompt)
        site.settle()
    assert site.comes_back(prompts[0])
    site.device.keep_only(prompts[2])
    site.settle()
    assert [site.comes_back(prompt) for prompt in prompts] == [True, False, True]
    assert site.tier.num_evicted == 1
    assert site.tier.check() == ""


def test_a_prefix_that_can_never_fit_evicts_nothing() -> None:
    site = Site(num_blocks=STATE_BLOCKS + 2)
    site.device.keep_only(TOKENS[:PAGE])
    site.settle()
    site.device.keep_only(TOKENS[3:] + TOKENS[:3])
    site.settle()
    assert site.tier.num_kept == 1
    assert site.tier.num_evicted == 0


def test_a_prefix_evicted_from_the_host_while_it_is_fetched_arrives_whole() -> None:
    site = Site(num_blocks=2 * (STATE_BLOCKS + 2))
    tokens, others = TOKENS[: 2 * PAGE], [tuple(range(b, b + 2 * PAGE)) for b in range(0, 400, 50)]
    site.device.keep_only(tokens)
    site.settle()
    kept = site.tier.longest(keys_of(tokens), len(tokens))
    assert kept is not None
    allocation = site.device.allocator.reserve(2)
    pull = site.tier.fetch(kept, tuple(allocation.pages), allocation.slot.id)
    saves = [site.copier.copies[0]]
    site.device.allocator.kept.clock.now += 9 * GAP
    for other in others:
        site.device.keep_only(other)
        site.tier.poll()
        for copy in site.copier.copies:
            while copy is not saves[0] and not copy.done():
                copy.step()
        site.tier.poll()
    assert not pull.done()
    assert not kept.valid
    site.copier.end_all()
    assert site.device.holds(allocation.pages, allocation.slot.id, tokens)
    site.settle()
    assert site.tier.check() == ""


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tier, "MAX_BATCH_BYTES", 1)
    site = Site()
    prompts = [tuple(range(base, base + PAGE)) for base in (0, 100, 200)]
    for prompt in prompts:
        site.device.keep_only(prompt)
    site.tier.poll()
    assert len(site.copier.copies) == 1
    assert len(site.tier._saving.prefixes) == 1
    site.settle()
    assert [site.comes_back(prompt) for prompt in prompts] == [True, True, True]


@pytest.mark.parametrize("when", ["copied", "kept", "fetched"])
def test_a_dropped_prefix_is_not_found(when: str) -> None:
    site = Site()
    tokens, keys = TOKENS[: 2 * PAGE], keys_of(TOKENS)
    kept = site.device.keep_only(tokens)
    site.tier.poll()
    site.tier.ahead = NONE
    if when in ("kept", "fetched"):
        site.settle()
    if when == "fetched":
        found = site.tier.longest(keys, len(TOKENS))
        assert found is not None
        allocation = site.device.allocator.reserve(2)
        site.tier.fetch(found, tuple(allocation.pages), allocation.slot.id)
    site.tier.drop(kept.key)
    site.settle()
    assert site.tier.longest(keys, len(TOKENS)) is None
    assert site.tier.used_bytes == 0
    assert site.tier.check() == ""


def test_the_tier_grows_with_its_memory() -> None:
    site = Site(num_blocks=STATE_BLOCKS, num_pieces=0)
    site.device.keep_only(TOKENS[: 3 * PAGE])
    site.settle()
    assert site.tier.num_kept == site.tier.size_bytes == 0
    assert len(site.device.allocator.kept) == 1
    site.copier.grow()
    site.copier.grow()
    site.settle()
    assert site.tier.size_bytes == 2 * STATE_BLOCKS * site.copier.block_bytes
    assert site.comes_back(TOKENS[: 3 * PAGE])


def test_no_prefix_leaves_while_as_much_of_the_device_is_free_as_is_to_be() -> None:
    site = Site()
    site.tier.ahead = PoolSize(29, 1)
    site.device.keep_only(TOKENS[:PAGE])
    site.settle()
    assert site.tier.num_kept == 0
    site.device.keep_only(tuple(range(100, 100 + PAGE)))
    site.settle()
    assert site.tier.num_kept == 1
    assert [kept.num_tokens for kept in site.device.allocator.kept] == [PAGE]
    assert site.comes_back(TOKENS[:PAGE])


@pytest.mark.parametrize("how", ["touched", "pinned"])
def test_a_prefix_used_while_it_is_copied_stays_on_the_device_alone(how: str) -> None:
    site = Site()
    kept = site.device.keep_only(TOKENS[: 2 * PAGE])
    site.tier.poll()
    assert kept.leaving
    if how == "touched":
        site.device.allocator.kept.touch(kept.key)
    else:
        site.device.allocator.prefixes.pin(kept)
    site.tier.ahead = NONE
    site.settle()
    assert kept.valid
    assert not kept.leaving
    assert site.tier.used_bytes == 0
    assert site.tier.check() == ""


def test_memory_that_is_needed_at_once_is_had_from_prefixes_that_are_copied() -> None:
    site = Site()
    site.device.keep_only(TOKENS)
    site.tier.poll()
    allocation = site.device.allocator.reserve(ALL.num_pages)
    site.settle()
    assert site.tier.used_bytes == 0
    site.device.allocator.release(allocation)
    assert site.device.allocator.check() == site.tier.check() == ""


def test_what_the_device_keeps_again_is_there_alone_with_its_uses() -> None:
    site = Site()
    kept = site.device.keep_only(TOKENS[: 2 * PAGE])
    for _ in range(4):
        site.device.allocator.kept.touch(kept.key)
    site.settle()
    site.tier.ahead = NONE
    again = site.device.keep_only(TOKENS[: 2 * PAGE])
    assert site.tier.used_bytes == 0
    assert site.device.allocator.kept.uses(again) == (5, 5)
    assert site.tier.check() == ""


def test_a_prefix_saves_what_neither_memory_has_of_it() -> None:
    site = Site()
    allocation = site.device.run(TOKENS)
    site.device.keep(allocation, TOKENS, 6 * PAGE)
    site.settle()
    site.tier.ahead = NONE
    (longer,) = site.tier
    assert site.tier._kept.worth(longer).saved_tokens == 6 * PAGE
    site.device.keep(allocation, TOKENS, 4 * PAGE)
    assert site.tier._kept.worth(longer).saved_tokens == 2 * PAGE


def test_adjacent_blocks_are_copied_together_but_not_across_pieces() -> None:
    site = Site(num_blocks=8, num_pieces=2)
    site.tier.poll()
    site.device.keep_only(TOKENS)  # 4 + 10 blocks of 16
    site.tier.poll()
    (copy,) = site.copier.copies
    sizes = sorted(num_bytes for _, _, num_bytes in copy.moves)
    cache, block = site.device.cache, site.copier.block_bytes
    states = [cache.conv[0].nbytes, cache.recurrent[0].nbytes]
    assert sizes == sorted([*states, 4 * block, 6 * block])
