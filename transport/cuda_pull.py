"""The copy stream of a CUDA worker: pulls run beside the decode steps, in order.

1. ``pull`` gathers what is wanted into batches, and enqueues for each: the table of addresses,
   one kernel for every block of all its handoffs (copy_kernel.py), and behind it the exporters'
   generations, read when the last byte is there.
2. The worker's loop asks each pull whether its batch's event has come; the host never waits.

What orders a pull against decode steps: its slots are free, and a slot becomes free only when
the host has seen the last step that could touch it retire. A sequence takes part in a step only
after the host has seen its pull's event. So neither stream waits for the other, except where
freed memory is poisoned by fills that the decode stream may still hold.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from transport.copy_kernel import BlockBytes, CopyShape, copy_blocks, read_words
from transport.cuda import close_handle, open_handle
from transport.messages import MemoryExport, Offer
from transport.pull import Copied, Pull, Wanted, check_generation, require_region
from transport.region import PROBE, Region
from transport.tensors import CacheTensors

MAX_BATCH_BYTES = 256 << 20
"""Handoffs copied together land together: the first should not wait for many behind it."""
HIGH_PRIORITY = -1
"""The copy's few thread blocks get their turn between two kernels of a step, not behind it."""


@dataclass(frozen=True)
class Parts:
    """The addresses of a cache's four parts in this process."""

    generations: int
    kv: int
    conv: int
    recurrent: int

    @classmethod
    def at(cls, address: int, region: Region) -> "Parts":
        return cls(
            address + region.generations,
            address + region.kv,
            address + region.conv,
            address + region.recurrent,
        )

    @classmethod
    def of(cls, cache: CacheTensors) -> "Parts":
        return cls(
            *(t.data_ptr() for t in (cache.generations, cache.kv, cache.conv, cache.recurrent))
        )


@dataclass(eq=False)
class Peer:
    """A peer's open memory: ``parts`` of its pools and of its probe, valid until closed."""

    address: int
    pools: Parts
    probe: Parts
    num_reading: int = 0
    leaving: bool = False

    def close_if_unread(self) -> None:
        if self.leaving and not self.num_reading:
            close_handle(self.address)


@dataclass(frozen=True)
class Batch:
    """Handoffs under one launch. ``generations`` [handoffs] int64 lies in pinned memory."""

    generations: torch.Tensor
    began: torch.cuda.Event
    finished: torch.cuda.Event


@dataclass(eq=False)
class CudaPull:
    """One handoff of a batch on the copy stream."""

    offer: Offer
    peer: Peer
    batch: Batch
    index: int
    num_bytes: int
    _done: bool = field(default=False, init=False)

    def done(self) -> bool:
        if not self._done and self.batch.finished.query():
            self._done = True
            self.peer.num_reading -= 1
            self.peer.close_if_unread()
        return self._done

    def wait(self, timeout_s: float) -> bool:
        # NOTE: a copy takes microseconds to a few milliseconds, and the driver has no wait with a
        # deadline; only a worker without any other work comes here.
        deadline = time.monotonic() + timeout_s
        while not self.done():
            if time.monotonic() >= deadline:
                return False
        return True

    def result(self) -> Copied:
        assert self._done, "result of a pull still under way"
        check_generation(self.offer, int(self.batch.generations[self.index]))
        copy_s = self.batch.began.elapsed_time(self.batch.finished) / 1e3
        return Copied(self.num_bytes, copy_s)


class CudaCopyStream:
    """A CopyStream on the device of ``own``. ``after_steps``: pulls wait for what the decode
    stream holds when they start."""

    def __init__(
        self,
        own: CacheTensors,
        *,
        after_steps: bool,
        shape: CopyShape | None = None,
    ) -> None:
        assert own.probe is not None, "a worker's region has a probe"
        self._own, self._own_probe = Parts.of(own), Parts.of(own.probe)
        self._sizes = BlockBytes(own.kv[0].nbytes, own.conv[0].nbytes, own.recurrent[0].nbytes)
        self._device = own.kv.device
        self._after_steps = after_steps
        self._shape = shape or CopyShape()
        self._stream = torch.cuda.Stream(self._device, priority=HIGH_PRIORITY)
        self._peers: dict[str, Peer] = {}
        self._warm_up()

    def open(self, instance: str, memory: MemoryExport) -> None:
        require_region(memory, kind="cuda-ipc", peer=instance)
        region = Region.of(memory.layout, memory.pools)
        address = open_handle(memory.handle, peer=instance)
        probe = Region.without_probe(memory.layout, PROBE)
        self._peers[instance] = Peer(
            address, Parts.at(address, region), Parts.at(address + region.probe, probe)
        )

    def close_peer(self, instance: str) -> None:
        peer = self._peers.pop(instance, None)
        if peer is not None:
            peer.leaving = True
            peer.close_if_unread()

    def pull(self, wanted: Sequence[Wanted]) -> list[Pull]:
        return [pull for batch in self._batches(wanted) for pull in self._start(batch)]

    def close(self) -> None:
        self._stream.synchronize()

    def _batches(self, wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
        batch: list[Wanted] = []
        num_bytes = 0
        for each in wanted:
            size = self._num_bytes(each)
            if batch and num_bytes + size > MAX_BATCH_BYTES:
                yield batch
                batch, num_bytes = [], 0
            batch.append(each)
            num_bytes += size
        if batch:
            yield batch

    def _start(self, wanted: list[Wanted]) -> Iterator[Pull]:
        peers = [self._peers[each.offer.instance] for each in wanted]
        blocks, words = self._addresses(wanted, peers)
        num_pages = len(blocks) - 2 * len(wanted)
        batch = self._enqueue(blocks, words, num_pages)
        for index, (each, peer) in enumerate(zip(wanted, peers, strict=True)):
            peer.num_reading += 1
            num_bytes = self._num_bytes(each)
            yield CudaPull(each.offer, peer, batch, index, num_bytes)

    def _addresses(self, wanted: list[Wanted], peers: list[Peer]) -> tuple[np.ndarray, np.ndarray]:
        """The table of copy_kernel.py [blocks, 2], and where each exporter's generation is [n]."""
        sizes = self._sizes
        pages, conv, recurrent, words = [], [], [], []
        for each, peer in zip(wanted, peers, strict=True):
            source = peer.probe if each.in_probe else peer.pools
            target = self._own_probe if each.in_probe else self._own
            ids = np.array((each.offer.block_table, each.block_table), dtype=np.int64)
            slots = np.array((each.offer.state_slot, each.state_slot), dtype=np.int64)
            pages.append((ids * sizes.page).T + np.array((source.kv, target.kv)))
            conv.append(slots * sizes.conv + np.array((source.conv, target.conv)))
            recurrent.append(
                slots * sizes.recurrent + np.array((source.recurrent, target.recurrent))
            )
            words.append(source.generations + 8 * each.offer.state_slot)
        return np.concatenate((*pages, conv, recurrent)), np.array(words, dtype=np.int64)

    def _enqueue(self, blocks: np.ndarray, words: np.ndarray, num_pages: int) -> Batch:
        num_states = len(words)
        staged = torch.empty(blocks.size + num_states, dtype=torch.int64, pin_memory=True)
        staged.numpy()[:] = np.concatenate((blocks.reshape(-1), words))
        generations = torch.empty(num_states, dtype=torch.int64, pin_memory=True)
        if self._after_steps:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            # Pinned and device memory used here is torch's: it goes to others only behind this.
            on_device = staged.to(self._device, non_blocking=True)
            began = torch.cuda.Event(enable_timing=True)
            finished = torch.cuda.Event(enable_timing=True)
            began.record()
            table = on_device[: blocks.size].view(-1, 2)
            copy_blocks(table, num_pages, num_states, self._sizes, self._shape)
            read = torch.empty(num_states, dtype=torch.int64, device=self._device)
            read_words(on_device[blocks.size :], read)
            generations.copy_(read, non_blocking=True)
            finished.record()
        return Batch(generations, began, finished)

    def _num_bytes(self, wanted: Wanted) -> int:
        return self._sizes.of(len(wanted.block_table), num_states=1)

    def _warm_up(self) -> None:
        """Compile the kernels now and not at the first handoff: the probe, onto itself."""
        probe = Peer(0, self._own_probe, self._own_probe, num_reading=1)
        offer = Offer("", (0,), 0, 0, 0)
        blocks, words = self._addresses([Wanted(offer, (0,), 0, in_probe=True)], [probe])
        self._enqueue(blocks, words, 1).finished.synchronize()
