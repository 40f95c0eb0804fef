"""The copy between two regions, bit for bit, and the epoch that validates it."""

from collections.abc import Iterator

import pytest
import torch
from msgspec import structs

from tests.transport.exporters import LAYOUT, Exporter, own_cache
from transport.copy.digest import digest
from transport.copy.pull import CopyThread, Wanted
from transport.copy.region import PROBE, Region
from transport.wire.errors import LayoutMismatch, PeerGone, StaleEpoch
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.offers import Offer


@pytest.fixture
def peer() -> Iterator[Exporter]:
    peer = Exporter.start(PoolSize(10, 3), seed=1)
    yield peer
    peer.close()


def pulled(peer: Exporter, epoch_at_source: int):
    target = own_cache(PoolSize(6, 4), seed=2)
    before = [t.clone() for t in (target.kv, *target.states)]
    peer.cache.epochs[2] = epoch_at_source
    stream = CopyThread(target)
    stream.open(peer.instance, peer.export)
    offer = Offer(peer.instance, (7, 0, 3), 2, epoch=5, num_tokens=40)
    (pull,) = stream.pull([Wanted(offer, (1, 5, 4), 3)])
    stream.close_peer(peer.instance)  # a pull under way keeps the mapping
    assert pull.wait(5.0)
    stream.close()
    return peer.cache, target, before, pull


def test_pages_and_state_arrive_bit_for_bit_and_nothing_else_changes(peer: Exporter) -> None:
    source, target, before, pull = pulled(peer, 5)
    copied = pull.result()
    num_windows = LAYOUT.num_window_pages(40)
    assert copied.num_bytes == (
        3 * LAYOUT.page_bytes + LAYOUT.conv_bytes + LAYOUT.recurrent_bytes
        + num_windows * LAYOUT.window_page_bytes
    )  # fmt: skip
    assert torch.equal(target.kv[[1, 5, 4]], source.kv[[7, 0, 3]])
    assert torch.equal(target.conv[3], source.conv[2])
    assert torch.equal(target.recurrent[3], source.recurrent[2])
    assert 0 < num_windows < LAYOUT.ring_pages
    assert torch.equal(target.windows[3, :num_windows], source.windows[2, :num_windows])
    assert torch.equal(target.windows[3, num_windows:], before[-1][3, num_windows:])
    for tensor, old in zip((target.kv, *target.states), before, strict=True):
        mine = {1, 5, 4} if tensor is target.kv else {3}
        others = [i for i in range(len(tensor)) if i not in mine]
        assert torch.equal(tensor[others], old[others])


def test_a_slot_that_changed_hands_voids_the_copy(peer: Exporter) -> None:
    *_, pull = pulled(peer, 6)
    with pytest.raises(StaleEpoch, match="epoch 6"):
        pull.result()


def test_the_digest_is_the_same_at_both_ends_and_blind_to_the_rest(peer: Exporter) -> None:
    source, target, _, _ = pulled(peer, 5)
    at_source = digest(source, (7, 0, 3), 2, num_tokens=40)
    assert digest(target, (1, 5, 4), 3, num_tokens=40) == at_source
    target.kv[4][:, :, 8:] = 99.0  # past the last token
    assert digest(target, (1, 5, 4), 3, num_tokens=40) == at_source
    target.kv[4][0, 0, 7, 0, 0] += 1.0
    assert digest(target, (1, 5, 4), 3, num_tokens=40) != at_source


def test_layouts_that_differ_are_named_field_by_field() -> None:
    other = CacheLayout("float32", 32, 2, 2, 8, 3, 24, 3, 4, 8, 16)
    with pytest.raises(
        LayoutMismatch, match=r"kv_dtype 'bfloat16' here, 'float32' at p-9.*page_size"
    ):
        LAYOUT.require_same(other, peer="p-9")


def test_only_memory_of_the_own_kind_and_the_right_size_is_opened(peer: Exporter) -> None:
    stream = CopyThread(own_cache(PoolSize(6, 4), seed=2))
    with pytest.raises(LayoutMismatch, match="'shm' here, 'cuda-ipc' at p-9"):
        stream.open("p-9", structs.replace(peer.export, kind="cuda-ipc"))
    with pytest.raises(
        LayoutMismatch, match=f"p-9 exports 4096 bytes, not {peer.memory.size_bytes}"
    ):
        stream.open("p-9", structs.replace(peer.export, size_bytes=4096))
    with pytest.raises(PeerGone, match="no longer exists"):
        stream.open("p-9", structs.replace(peer.export, handle="baton-test-nobody"))
    stream.close()


def test_parts_of_a_region_do_not_overlap() -> None:
    size = PoolSize(7, 5)
    at = Region.of(LAYOUT, size)
    assert at.kv >= at.epochs + 5 * 8
    assert at.conv >= at.kv + 7 * LAYOUT.page_bytes
    assert at.windows >= at.recurrent + 5 * 3 * 4 * 8 * 16 * 4
    assert at.probe >= at.windows + 5 * LAYOUT.ring_pages * LAYOUT.window_page_bytes
    without = LAYOUT.without_windows()
    assert at.size_bytes == at.probe + Region.without_probe(without, PROBE).size_bytes
