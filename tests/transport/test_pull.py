"""The copy between two regions, bit for bit, and the generation that validates it."""

import pytest
import torch

from transport.errors import LayoutMismatch, StaleGeneration
from transport.layout import CacheLayout, PoolSize
from transport.messages import Offer
from transport.pull import CopyThread, digest
from transport.region import Region
from transport.tensors import CacheTensors

LAYOUT = CacheLayout("bfloat16", 16, 2, 2, 8, 3, 24, 3, 4, 8, 16)


def region(size: PoolSize, seed: int) -> CacheTensors:
    buffer = torch.empty(Region.of(LAYOUT, size).size_bytes, dtype=torch.uint8)
    cache = CacheTensors.over(buffer, LAYOUT, size)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (cache.kv, cache.conv, cache.recurrent):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    cache.generations.zero_()
    return cache


def pulled(generation_at_source: int):
    source, target = region(PoolSize(10, 3), 1), region(PoolSize(6, 4), 2)
    before = [t.clone() for t in (target.kv, target.conv, target.recurrent)]
    source.generations[2] = generation_at_source
    stream = CopyThread(target)
    offer = Offer("p", (7, 0, 3), 2, generation=5, num_tokens=40)
    pull = stream.pull(source, offer, block_table=(1, 5, 4), state_slot=3)
    assert pull.wait(5.0)
    stream.close()
    return source, target, before, pull


def test_pages_and_state_arrive_bit_for_bit_and_nothing_else_changes() -> None:
    source, target, before, pull = pulled(5)
    copied = pull.result()
    assert copied.num_bytes == 3 * LAYOUT.page_bytes + LAYOUT.state_slot_bytes
    assert torch.equal(target.kv[[1, 5, 4]], source.kv[[7, 0, 3]])
    assert torch.equal(target.conv[3], source.conv[2])
    assert torch.equal(target.recurrent[3], source.recurrent[2])
    for tensor, old in zip((target.kv, target.conv, target.recurrent), before, strict=True):
        mine = {1, 5, 4} if tensor is target.kv else {3}
        others = [i for i in range(len(tensor)) if i not in mine]
        assert torch.equal(tensor[others], old[others])


def test_a_slot_that_changed_hands_voids_the_copy() -> None:
    *_, pull = pulled(6)
    with pytest.raises(StaleGeneration, match="generation 6"):
        pull.result()


def test_the_digest_is_the_same_at_both_ends_and_blind_to_the_rest() -> None:
    source, target, _, _ = pulled(5)
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


def test_parts_of_a_region_do_not_overlap() -> None:
    size = PoolSize(7, 5)
    at = Region.of(LAYOUT, size)
    assert at.kv >= at.generations + 5 * 8
    assert at.conv >= at.kv + 7 * LAYOUT.page_bytes
    assert at.size_bytes >= at.recurrent + 5 * 3 * 4 * 8 * 16 * 4
