"""What the self-test of a pair finds, and that it touches no page or state slot of a pool."""

from collections.abc import Iterator

import pytest
import torch

from tests.transport.exporters import LAYOUT, Exporter, own_cache
from transport.copy.pull import CopyThread
from transport.copy.selftest import NUM_PAGES, PeerTest, probe_peer, write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize


@pytest.fixture
def peer() -> Iterator[Exporter]:
    peer = Exporter.start(PoolSize(10, 3), seed=1)
    yield peer
    peer.close()


@pytest.fixture
def own() -> CacheTensors:
    return own_cache(PoolSize(6, 4), seed=2)


def outcome(peer: Exporter, own: CacheTensors, *, as_instance: str = "") -> PeerTest:
    instance = as_instance or peer.instance
    stream = CopyThread(own)
    stream.open(instance, peer.export)
    try:
        return probe_peer(stream, own, instance)
    finally:
        stream.close()


def test_a_good_path_passes_and_leaves_the_pools_alone(peer: Exporter, own: CacheTensors) -> None:
    caches = (own, peer.cache)
    before = [t.clone() for c in caches for t in (c.epochs, c.kv, *c.states)]
    test = outcome(peer, own)
    assert test.problem == ""
    assert test.num_bytes == size()
    assert test.bytes_per_s > 0
    after = [t for c in caches for t in (c.epochs, c.kv, *c.states)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("part", ["kv", "conv", "recurrent"])
def test_one_wrong_byte_anywhere_is_found(part: str, peer: Exporter, own: CacheTensors) -> None:
    assert peer.cache.probe is not None
    for place in (0, -1):
        whole = exported_bytes(peer.cache)[["kv", "conv", "recurrent"].index(part)]
        whole[place] ^= 0x10
        problem = outcome(peer, own).problem
        assert f"1 of {size()} bytes from {peer.instance} arrived wrong" in problem
        assert "baton doctor" in problem
        whole[place] ^= 0x10
    assert outcome(peer, own).problem == ""


def test_pages_in_each_others_place_are_found(peer: Exporter, own: CacheTensors) -> None:
    assert peer.cache.probe is not None
    kv = peer.cache.probe.kv
    kv[[3, 4]] = kv[[4, 3]]
    assert "arrived wrong" in outcome(peer, own).problem


def test_memory_of_another_instance_is_found(peer: Exporter, own: CacheTensors) -> None:
    assert "arrived wrong" in outcome(peer, own, as_instance="test-other").problem


def test_memory_that_nobody_prepared_is_found(peer: Exporter, own: CacheTensors) -> None:
    assert peer.cache.probe is not None
    peer.cache.probe.epochs.zero_()
    assert f"this is not the memory of {peer.instance}" in outcome(peer, own).problem


def test_a_worker_that_has_tested_others_still_passes_their_test(
    peer: Exporter, own: CacheTensors
) -> None:
    write_pattern(own, "own")
    exported = [part.clone() for part in exported_bytes(own)]
    assert outcome(peer, own).problem == ""
    for part, before in zip(exported_bytes(own), exported, strict=True):
        assert torch.equal(part, before)


def test_a_copy_that_never_ends_is_found(own: CacheTensors) -> None:
    class Stuck:
        def wait(self, timeout_s: float) -> bool:
            return False

    class Stream:
        def pull(self, wanted):
            return [Stuck()]

    assert "the copy from p-1 did not end within 3 s" in probe_peer(Stream(), own, "p-1").problem


def exported_bytes(cache: CacheTensors) -> list[torch.Tensor]:
    """The parts of the probe's first half, uint8, in place."""
    assert cache.probe is not None
    parts = (cache.probe.kv, cache.probe.conv, cache.probe.recurrent)
    return [part[: len(part) // 2].view(-1).view(torch.uint8) for part in parts]


def size() -> int:
    return NUM_PAGES * LAYOUT.page_bytes + LAYOUT.without_windows().state_slot_bytes
