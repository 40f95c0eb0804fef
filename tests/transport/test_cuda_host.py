"""The CUDA host copier's pieces, streams and copies, on a CUDA runtime of one thread."""

import logging
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

from tests.transport.exporters import own_cache
from tests.transport.fake_cuda import Event, RuntimeFake, Stream, installed
from transport.copy.host_copy import BlockMap, HostCopy
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu has the real thing")

TO_DEVICE, TO_HOST = 1, 2
SIZE = PoolSize(12, 3)
BLOCKS_PER_PIECE = 6


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeFake]:
    with installed(monkeypatch) as runtime:
        yield runtime


def host_copier(cache: CacheTensors, num_blocks: int, **order):
    cuda_host = import_module("transport.copy.cuda_host")  # with this test's runtime
    block_bytes = cache.kv[0].nbytes
    cuda_host.PIECE_BYTES = BLOCKS_PER_PIECE * block_bytes
    order = {"after_steps": False, **order}
    return cuda_host.CudaHostCopier(cache, num_blocks * block_bytes + 1, **order)


def test_pages_and_states_come_back_over_several_pieces(cuda: RuntimeFake) -> None:
    cache, before = own_cache(SIZE, 3), own_cache(SIZE, 3)
    of_state = tuple(range(8, 8 + BlockMap(cache, 1).blocks_per_state))
    num_pieces = -(-(8 + len(of_state)) // BLOCKS_PER_PIECE)
    copier = host_copier(cache, num_pieces * BLOCKS_PER_PIECE + 1)
    assert copier.pieces.wait(10)
    assert copier.num_blocks == num_pieces * BLOCKS_PER_PIECE  # whole pieces only
    saved = copier.save(HostCopy(((1, 4), (2, 5), (3, 6), (9, 0)), ((2, of_state),)))
    assert saved.done()
    assert saved.result().num_bytes == 4 * cache.kv[0].nbytes + states_bytes(cache)
    # Pages 1 and 2 are adjacent at both ends, 2 and 3 are in two pieces on the host.
    sizes = [2 * cache.kv[0].nbytes, cache.kv[0].nbytes, cache.kv[0].nbytes]
    assert cuda.copied[:3] == [(size, TO_HOST) for size in sizes]
    for tensor in (cache.kv, *cache.states):
        tensor.zero_()
    assert copier.fetch(HostCopy(((7, 4), (6, 5), (0, 6), (11, 0)), ((0, of_state),))).done()
    assert cuda.copied[-1][1] == TO_DEVICE
    for page, source in ((7, 1), (6, 2), (0, 3), (11, 9)):
        assert cache.kv[page].equal(before.kv[source])
    assert cache.conv[0].equal(before.conv[2])
    assert cache.recurrent[0].equal(before.recurrent[2])
    assert cache.windows[0].equal(before.windows[2])
    assert not cache.kv[[1, 2, 3, 4, 5, 8, 9, 10]].any()
    assert copier.close()
    assert not cuda.registered


def states_bytes(cache: CacheTensors) -> int:
    return sum(states[0].nbytes for states in cache.states)


def test_a_copy_is_done_when_its_event_has_come(cuda: RuntimeFake) -> None:
    cache = own_cache(SIZE, 1)
    copier = host_copier(cache, 12)
    assert copier.pieces.wait(10)
    Event.held_back = True
    pull = copier.save(HostCopy(((0, 0),), ()))
    assert not pull.done()
    assert not pull.wait(0.01)
    assert not copier.close(0.01)
    assert cuda.registered
    Event.held_back = False
    assert pull.wait(1)
    assert copier.close()


@pytest.mark.parametrize("after_steps", [True, False])
def test_only_fetches_wait_for_epochs_and_for_poison(cuda: RuntimeFake, after_steps: bool) -> None:
    copier = host_copier(own_cache(SIZE, 1), 12, after_steps=after_steps, after=Stream())
    assert copier.pieces.wait(10)
    copier.save(HostCopy(((0, 0),), ()))
    assert Stream.waited_for == 0
    copier.fetch(HostCopy(((0, 0),), ()))
    assert Stream.waited_for == 1 + after_steps
    assert copier.close()


def test_memory_that_cannot_be_pinned_is_logged_and_the_rest_used(
    cuda: RuntimeFake, caplog: pytest.LogCaptureFixture
) -> None:
    cuda.max_registered = 1
    with caplog.at_level(logging.ERROR):
        copier = host_copier(own_cache(SIZE, 1), 3 * BLOCKS_PER_PIECE)
        assert copier.pieces.wait(10)
    assert copier.num_blocks == BLOCKS_PER_PIECE
    assert "could be pinned" in caplog.text
    assert copier.close()


def test_a_host_with_little_memory_left_keeps_it(
    cuda: RuntimeFake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda_host = import_module("transport.copy.cuda_host")
    left = iter([cuda_host.LEFT_BYTES + (1 << 20), cuda_host.LEFT_BYTES])
    monkeypatch.setattr(cuda_host, "available_bytes", lambda: next(left))
    with caplog.at_level(logging.ERROR):
        copier = host_copier(own_cache(SIZE, 1), 3 * BLOCKS_PER_PIECE)
        assert copier.pieces.wait(10)
    assert copier.num_blocks == BLOCKS_PER_PIECE
    assert "4.3 GB are available on this host" in caplog.text
    assert copier.close()
