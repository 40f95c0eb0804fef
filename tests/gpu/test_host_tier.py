"""The host tier's copies on a GPU: bit for bit, and how fast they are at the full model's size."""

import time

import pytest
import torch

from tests.engine.prefix_device import keys_of
from transport.copy.host_copy import HostCopy
from transport.copy.pull import Pull
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize
from worker.pairtest import FULL_SIZE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

POOLS = PoolSize(1100, 4)
HOST_BYTES = 4_000_000_000


@pytest.fixture(scope="module")
def cache() -> CacheTensors:
    size_bytes = Region.of(FULL_SIZE, POOLS).size_bytes
    cache = CacheTensors.over(
        torch.empty(size_bytes, dtype=torch.uint8, device="cuda"), FULL_SIZE, POOLS
    )
    for tensor in (cache.kv, cache.conv, cache.recurrent):
        tensor.normal_()
    torch.cuda.synchronize()
    return cache


@pytest.fixture(scope="module")
def copier(cache: CacheTensors):
    from transport.copy.cuda_host import CudaHostCopier

    began = time.perf_counter()
    copier = CudaHostCopier(cache, HOST_BYTES, after_steps=False)
    created_s = time.perf_counter() - began
    assert copier.pieces.wait(120)
    pinned_s = time.perf_counter() - began
    pinned = copier.num_blocks * copier.block_bytes
    assert pinned > 0.9 * HOST_BYTES
    print(
        f"\npinned {pinned / 1e9:.2f} GB in {pinned_s:.2f} s ({pinned / pinned_s / 1e9:.1f} GB/s),"
        f" of which the caller waited {created_s * 1e3:.1f} ms"
    )
    yield copier
    assert copier.close(30)


def timed(what: str, start, *, min_gb_per_s: float = 0.0) -> Pull:
    """Print what the copy took on the device, and its launch on the host; the second of two."""
    for _ in range(2):
        began = time.perf_counter()
        pull = start()
        launch_s = time.perf_counter() - began
        assert pull.wait(60)
    copied = pull.result()
    gb_per_s = copied.num_bytes / copied.copy_s / 1e9
    print(
        f"{what}: {copied.num_bytes / 2**20:.0f} MiB in {copied.copy_s * 1e3:.2f} ms, "
        f"{gb_per_s:.1f} GB/s; launched in {launch_s * 1e6:.0f} us"
    )
    assert gb_per_s > min_gb_per_s
    return pull


@pytest.mark.parametrize("num_pages", [0, 1, 128, 1024])
@pytest.mark.parametrize("scattered", [False, True])
def test_pages_and_a_state_come_back_bit_for_bit(
    cache: CacheTensors, copier, num_pages: int, scattered: bool
) -> None:
    order = torch.randperm if scattered else torch.arange
    pages = order(1050)[:num_pages].tolist()
    blocks = order(copier.num_blocks).tolist()
    state, blocks = blocks[: copier.blocks_per_state], blocks[copier.blocks_per_state :]
    copy = HostCopy(tuple(zip(pages, blocks, strict=False)), ((2, state),))
    before = cache.kv[pages].clone(), cache.conv[2].clone(), cache.recurrent[2].clone()
    others = [page for page in range(1100) if page not in set(pages)]
    untouched = cache.kv[others].sum(dtype=torch.float64), cache.recurrent[[0, 1, 3]].clone()
    torch.cuda.synchronize()
    what = f"{num_pages} {'scattered' if scattered else 'adjacent'} pages and a state"
    timed(f"save  {what}", lambda: copier.save(copy), min_gb_per_s=5)
    for tensor in (cache.conv[2], cache.recurrent[2]):
        tensor.zero_()
    cache.kv[pages] = 0
    torch.cuda.synchronize()
    timed(f"fetch {what}", lambda: copier.fetch(copy), min_gb_per_s=5)
    assert torch.equal(cache.kv[pages], before[0])
    assert torch.equal(cache.conv[2], before[1])
    assert torch.equal(cache.recurrent[2], before[2])
    assert torch.equal(cache.kv[others].sum(dtype=torch.float64), untouched[0])
    assert torch.equal(cache.recurrent[[0, 1, 3]], untouched[1])


def test_both_directions_at_once(cache: CacheTensors, copier) -> None:
    """Saves do not delay fetches: the GPU has a copy engine for each direction."""
    out = HostCopy(tuple((page, page) for page in range(400)), ())
    back = HostCopy(tuple((page, page + 500) for page in range(500, 900)), ())
    copier.save(HostCopy(back.pages, ())).wait(60)
    alone = timed("fetch alone", lambda: copier.fetch(back)).result().copy_s

    def both() -> Pull:
        copier.save(out)
        return copier.fetch(back)

    beside = timed("fetch beside a save", both).result().copy_s
    assert beside < 3 * alone


def test_the_host_never_waits_for_a_copy_under_way(cache: CacheTensors, copier) -> None:
    pages = tuple((page, page) for page in range(1000))
    began = time.perf_counter()
    pull = copier.save(HostCopy(pages, ()))
    launched_s = time.perf_counter() - began
    assert pull.wait(60)
    assert launched_s < pull.result().copy_s


def test_the_tier_over_it_brings_a_prefix_back(cache: CacheTensors, copier) -> None:
    from engine.cache.allocator import CacheAllocator
    from engine.cache.host_tier import HostTier

    allocator = CacheAllocator(POOLS, page_size=FULL_SIZE.page_size)
    tier = HostTier(FULL_SIZE, copier, allocator, ahead=POOLS)
    keys, tokens = keys_of(range(200), FULL_SIZE.page_size), 2 * 64 + 5
    kept = allocator.turn_into_prefix(allocator.reserve(3), keys, tokens)
    assert kept is not None
    pages, slot = list(kept.pages), kept.slot.id
    before = cache.kv[pages].clone(), cache.recurrent[slot].clone(), cache.conv[slot].clone()
    deadline = time.monotonic() + 60
    while kept.valid:
        tier.poll()
        assert time.monotonic() < deadline
    found = tier.longest(keys, 200)
    assert found is not None
    cache.kv[pages] = 0  # the device's memory is free, and others write it
    cache.recurrent[slot].zero_()
    torch.cuda.synchronize()
    allocation = allocator.reserve(3)
    assert tier.fetch(found, tuple(allocation.pages), allocation.slot.id).wait(60)
    tier.poll()
    assert tier.check() == allocator.check() == ""
    assert torch.equal(cache.kv[list(allocation.pages)], before[0])
    assert torch.equal(cache.recurrent[allocation.slot.id], before[1])
    assert torch.equal(cache.conv[allocation.slot.id], before[2])
