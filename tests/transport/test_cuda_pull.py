"""The CUDA copy stream's addresses, batches and peers, with its kernels interpreted."""

import weakref
from collections.abc import Iterator

import pytest
import torch
from msgspec import structs

from tests.transport.exporters import LAYOUT, filled, own_cache
from tests.transport.fake_cuda import Event, RuntimeFake, Stream, installed
from transport.copy import launch as copy_launch
from transport.copy.kernel import CopyShape
from transport.copy.pull import Wanted, copy_sequence
from transport.copy.region import Region
from transport.copy.selftest import EPOCH as GENERATION_OF_PROBE
from transport.copy.selftest import probe_peer, write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.errors import LayoutMismatch, PeerGone, StaleEpoch
from transport.wire.layout import PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.offers import Offer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has the real thing")

SIZE, OWN_SIZE = PoolSize(10, 3), PoolSize(12, 5)
SHAPE = CopyShape(num_programs=3, num_warps=4, tile_bytes=1024)
EPOCH = 5


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeFake]:
    with installed(monkeypatch) as runtime:
        yield runtime


def export(cuda: RuntimeFake, instance: str, seed: int) -> tuple[MemoryExport, CacheTensors]:
    buffer = torch.zeros(Region.of(LAYOUT, SIZE).size_bytes, dtype=torch.uint8)
    cache = filled(buffer, SIZE, seed)
    cache.epochs.fill_(EPOCH)
    write_pattern(cache, instance)
    cuda.buffers[instance] = buffer
    handle = instance.encode().hex()
    return MemoryExport("cuda-ipc", handle, buffer.numel(), LAYOUT, SIZE), cache


def copy_stream(own: CacheTensors, *, after_steps: bool = False):
    from transport.copy.cuda_pull import CudaCopyStream

    return CudaCopyStream(own, after_steps=after_steps, shape=SHAPE)


WANTED = [
    Wanted(Offer("p-1", (7, 0, 3), 2, EPOCH, 40), (1, 5, 4), 3),
    Wanted(Offer("p-2", (1,), 0, EPOCH, 10), (11,), 0),
    Wanted(Offer("p-2", (9, 8), 1, EPOCH, 20), (0, 2), 1),
]


@pytest.mark.parametrize("together", [True, False])
def test_handoffs_of_several_peers_arrive_whatever_the_batch(
    cuda: RuntimeFake, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    exports = {name: export(cuda, name, seed) for seed, name in enumerate(("p-1", "p-2"))}
    own, expected = own_cache(OWN_SIZE, 9), own_cache(OWN_SIZE, 9)
    stream = copy_stream(own)
    for name, (memory, _) in exports.items():
        stream.open(name, memory)
    from transport.copy import cuda_pull

    if not together:
        monkeypatch.setattr(cuda_pull, "MAX_BATCH_BYTES", 1)
    pulls = stream.pull(WANTED)
    assert all(pull.done() for pull in pulls)
    assert len({id(pull.batch) for pull in pulls}) == (1 if together else 3)
    for wanted, pull in zip(WANTED, pulls, strict=True):
        offer = wanted.offer
        num_bytes = copy_sequence(
            exports[offer.instance][1], offer.block_table, offer.state_slot,
            expected, wanted.block_table, wanted.state_slot, offer.num_tokens,
        )  # fmt: skip
        copied = pull.result()
        assert (copied.num_bytes, copied.copy_s) == (num_bytes, 0.25e-3)
    for part in ("kv", "conv", "recurrent", "windows"):
        ours, theirs = (getattr(cache, part).view(torch.uint8) for cache in (own, expected))
        assert torch.equal(ours, theirs), part


def test_a_generation_that_changed_voids_only_its_own_copy(cuda: RuntimeFake) -> None:
    memory, cache = export(cuda, "p-2", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    stream.open("p-2", memory)
    cache.epochs[1] = EPOCH + 1
    good, bad = stream.pull(WANTED[1:])
    assert good.done()
    assert bad.done()
    assert good.result().num_bytes > 0
    with pytest.raises(StaleEpoch, match=f"epoch {EPOCH + 1}"):
        bad.result()


def test_a_peer_is_unmapped_once_its_last_pull_is_done(cuda: RuntimeFake) -> None:
    memory, _ = export(cuda, "p-2", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    stream.open("p-2", memory)
    Event.held_back = True
    first, second = stream.pull(WANTED[1:])
    stream.close_peer("p-2")
    assert not first.wait(0.0)
    assert cuda.closed == []
    Event.held_back = False
    assert first.done()
    assert first.done()
    assert cuda.closed == []
    assert second.done()
    assert cuda.closed == [cuda.buffers["p-2"].data_ptr()]
    stream.close_peer("p-2")
    assert len(cuda.closed) == 1


def test_a_pull_nobody_asks_for_any_more_keeps_nothing_once_it_has_ended(cuda: RuntimeFake) -> None:
    memory, _ = export(cuda, "p-2", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    stream.open("p-2", memory)
    Event.held_back = True
    stream.pull(WANTED[1:])
    stream.close_peer("p-2")
    assert not stream.close(timeout_s=0.0)
    stream.pull([])
    assert cuda.closed == []
    Event.held_back = False
    stream.pull([])
    assert cuda.closed == [cuda.buffers["p-2"].data_ptr()]
    assert stream.close()


def test_graphs_find_their_memory_where_it_was(
    cuda: RuntimeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph knows memory by address alone, and so holds none."""
    own, empty, made = own_cache(OWN_SIZE, 9), torch.empty, []

    def noted(*size, **options) -> torch.Tensor:
        tensor = empty(*size, **options)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch, "empty", noted)
    monkeypatch.setattr(copy_launch, "captured", lambda work, stream: lambda: None)
    stream = copy_stream(own)
    assert made
    assert all(each() is not None for each in made), "freed under a graph"
    assert stream.close()


def test_after_a_burst_handoffs_go_by_graph_again(cuda: RuntimeFake) -> None:
    memory, _ = export(cuda, "p-2", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    stream.open("p-2", memory)
    Event.held_back = True
    burst = [pull for _ in range(10) for pull in stream.pull(WANTED[1:2])]
    assert sum(not pull.batch.launch.captured for pull in burst) == 6
    Event.held_back = False
    assert all(pull.done() for pull in burst)
    for _ in range(20):
        (pull,) = stream.pull(WANTED[1:2])
        assert pull.batch.launch.captured
        assert pull.done()


def test_a_pair_is_tested_by_the_same_kernel(cuda: RuntimeFake) -> None:
    memory, cache = export(cuda, "p-1", 1)
    own = own_cache(OWN_SIZE, 9)
    stream = copy_stream(own)
    stream.open("p-1", memory)
    test = probe_peer(stream, own, "p-1")
    assert test.problem == ""
    assert test.bytes_per_s == test.num_bytes / 0.25e-3
    assert cache.probe is not None
    cache.probe.conv.view(-1)[5] += 1
    assert "arrived wrong" in probe_peer(stream, own, "p-1").problem


def test_copies_wait_for_steps_only_where_freed_memory_is_poisoned(cuda: RuntimeFake) -> None:
    memory, _ = export(cuda, "p-2", 1)
    for after_steps in (False, True):
        stream = copy_stream(own_cache(OWN_SIZE, 9), after_steps=after_steps)
        stream.open("p-2", memory)
        before = Stream.waited_for
        stream.pull(WANTED[1:])
        assert Stream.waited_for - before == after_steps


def test_what_cannot_be_opened_says_what_to_look_at(cuda: RuntimeFake) -> None:
    memory, _ = export(cuda, "p-1", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    dead = structs.replace(memory, handle=b"dead".hex())
    with pytest.raises(PeerGone, match=r"memory of p-1: cuda error 400\. Its process has ended"):
        stream.open("p-1", dead)
    hidden = structs.replace(memory, handle=b"hidden".hex())
    with pytest.raises(PeerGone, match=r"cuda error 304\..*PID namespace.*baton doctor"):
        stream.open("p-1", hidden)
    same = structs.replace(memory, handle=b"same number".hex())
    with pytest.raises(PeerGone, match=r"cuda error 201\..*share one PID namespace"):
        stream.open("p-1", same)
    with pytest.raises(PeerGone, match="non-hexadecimal"):
        stream.open("p-1", structs.replace(memory, handle="no hex"))
    with pytest.raises(LayoutMismatch, match="'cuda-ipc' here, 'shm' at p-1"):
        stream.open("p-1", structs.replace(memory, kind="shm"))
    assert cuda.opened == []


def test_memory_that_cannot_be_exported_is_refused_with_the_reason(cuda: RuntimeFake) -> None:
    from transport.copy.cuda import export_handle

    assert export_handle(1234) == b"handle".hex()
    cuda.export_error = 1
    with pytest.raises(ValueError, match=r"^cache memory: .*expandable_segments"):
        export_handle(1234)


def test_a_region_has_whole_pages_of_the_gpu(cuda: RuntimeFake) -> None:
    from transport.copy.cuda import allocate_pages

    for wanted in (1, 2 << 20, (8 << 30) + 4096):
        allocate_pages(wanted)
    assert cuda.allocated == [2 << 20, 2 << 20, (8 << 30) + (2 << 20)]
    with pytest.raises(ValueError, match=r"cache memory: 64.0 GiB wanted, 24.0 of 80.0 GiB free"):
        allocate_pages((64 << 30) + 4096)


def test_a_launch_is_used_again_only_when_it_is_over(cuda: RuntimeFake) -> None:
    memory, cache = export(cuda, "p-2", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    stream.open("p-2", memory)

    def pulled():
        (pull,) = stream.pull(WANTED[2:])
        return pull

    Event.held_back = True
    under_way = [pulled() for _ in range(10)]
    assert len({id(pull.batch.launch) for pull in under_way}) == 10
    Event.held_back = False
    assert all(pull.done() for pull in under_way)
    cache.epochs[1] = EPOCH + 1
    later = pulled()
    assert later.batch.launch in [pull.batch.launch for pull in under_way]
    assert later.done()
    for pull in under_way:
        assert pull.result().num_bytes > 0
    with pytest.raises(StaleEpoch):
        later.result()


def test_more_handoffs_than_there_are_slots_of_our_own_fit_too(cuda: RuntimeFake) -> None:
    memory, _ = export(cuda, "p-1", 1)
    stream = copy_stream(own_cache(OWN_SIZE, 9))
    stream.open("p-1", memory)
    offer = Offer("p-1", (0,), 0, GENERATION_OF_PROBE, 0)
    pulls = stream.pull([Wanted(offer, (0,), 0, in_probe=True)] * 40)
    assert all(pull.done() and pull.result().num_bytes > 0 for pull in pulls)


def test_a_warm_up_copies_nothing_and_gets_in_the_way_of_no_pull(cuda: RuntimeFake) -> None:
    memory, cache = export(cuda, "p-2", 1)
    own, before = own_cache(OWN_SIZE, 9), own_cache(OWN_SIZE, 9)
    stream = copy_stream(own)
    stream.open("p-2", memory)
    Event.held_back = True
    stream.warm_up()
    warmed_up = stream._warm_up_launch
    stream.warm_up()
    assert stream._warm_up_launch is warmed_up, "one at a time"
    (pull,) = stream.pull(WANTED[1:2])
    assert pull.batch.launch is not warmed_up, "the GPU may still read what it was given"
    Event.held_back = False
    assert pull.done()
    wanted = WANTED[1]
    copy_sequence(
        cache, wanted.offer.block_table, wanted.offer.state_slot,
        before, wanted.block_table, wanted.state_slot, wanted.offer.num_tokens,
    )  # fmt: skip
    for part in ("kv", "conv", "recurrent", "windows"):
        ours, theirs = (getattr(each, part).view(torch.uint8) for each in (own, before))
        assert torch.equal(ours, theirs), part
    num_spare = len(stream._launches._spare)
    stream.warm_up()
    assert stream._warm_up_launch is not None, "the pull before it has ended"
    (pull,) = stream.pull(WANTED[1:2])
    assert pull.done()
    assert len(stream._launches._spare) == num_spare + 1, "each is given back once"
    assert stream.close()
