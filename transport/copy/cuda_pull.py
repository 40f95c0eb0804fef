"""The copy stream of a CUDA worker: pulls run beside the decode steps, in order.

1. ``pull`` divides the handoffs into batches and enqueues for each (launch.py): the table of
   addresses (addresses.py), one kernel that copies every block of the batch (kernel.py), and
   behind it the reading of the exporters' epochs.
2. The worker's loop polls the event of each batch; the host never waits.

Order between pulls and decode steps: a pull writes only free memory, and memory becomes free only
when the host has seen the last step end that could use it. A sequence takes part in a step only
after the host has seen its pull's event. So neither stream waits for the other, except where freed
memory is poisoned (tests), by fills that may be queued on the decode stream. A pull waits for the
epochs' stream: peers must see that the old epoch is gone before the memory is overwritten.

NOTE: with drafts the host sees a step's tokens before the draft layer's KV of the step is written.
A pull at that moment may copy another sequence's KV of the draft layer, or be overwritten by it.
That KV decides which drafts are made, never which token is accepted.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from transport.copy.addresses import CacheAddresses, CopySizes, fill_table
from transport.copy.cuda import close_handle, open_handle
from transport.copy.kernel import CopyShape
from transport.copy.launch import CopyLaunch, CopyLaunches
from transport.copy.pull import (
    CLOSE_S,
    Copied,
    Pull,
    Wanted,
    check_epoch,
    poll_until_done,
    require_region,
)
from transport.copy.tensors import CacheTensors
from transport.wire.memory_export import MemoryExport
from transport.wire.offers import Offer

MAX_BATCH_BYTES = 256 << 20
"""The most bytes of one batch. Handoffs copied together are done together, so this bounds how long
the first waits for the others."""
WARM_UP = Wanted(Offer("", tuple(range(16)), 0, 0, 1), tuple(range(16)), 0, in_probe=True)
"""Addresses of a warm-up: they are filled in, and no bytes are copied."""
HIGH_PRIORITY = -1
"""Priority of the copy stream: its few thread blocks start between two kernels of a step, instead
of after the step."""


@dataclass(eq=False)
class Peer:
    """A peer's open memory, closed once the peer is leaving and no pull reads it."""

    address: int
    memory: CacheAddresses
    num_reading: int = 0
    leaving: bool = False

    def close_if_unread(self) -> None:
        if self.leaving and not self.num_reading:
            close_handle(self.address)


@dataclass(eq=False)
class Batch:
    """The handoffs of one launch, which is returned to ``launches`` when it is done. Then
    ``epochs`` are the exporters' epochs as read after the last byte."""

    launch: CopyLaunch
    launches: CopyLaunches
    num_handoffs: int
    epochs: list[int] = field(default_factory=list, init=False)
    copy_s: float = field(default=0.0, init=False)

    def done(self) -> bool:
        if not self.epochs and self.launch.finished.query():
            self.epochs, self.copy_s = self.launch.outcome(self.num_handoffs)
            self.launches.give_back(self.launch)
        return bool(self.epochs)


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
        if not self._done and self.batch.done():
            self._done = True
            self.peer.num_reading -= 1
            self.peer.close_if_unread()
        return self._done

    def wait(self, timeout_s: float) -> bool:
        return poll_until_done(self, timeout_s)

    def result(self) -> Copied:
        assert self._done, "result of a pull still under way"
        check_epoch(self.offer, self.batch.epochs[self.index])
        return Copied(self.num_bytes, self.batch.copy_s)


class CudaCopyStream:
    """A CopyStream on the device of ``own``. Pulls wait for the work queued on ``after`` when they
    start, and with ``after_steps`` also for the work queued on the decode stream."""

    def __init__(
        self,
        own: CacheTensors,
        *,
        after_steps: bool,
        after: torch.cuda.Stream | None = None,
        shape: CopyShape | None = None,
    ) -> None:
        self._own = CacheAddresses.of(own)
        self._sizes = CopySizes.of(own)
        self._after_steps = after_steps
        self._after = after
        self._stream = stream = torch.cuda.Stream(own.kv.device, priority=HIGH_PRIORITY)
        self._peers: dict[str, Peer] = {}
        self._under_way: list[CudaPull] = []
        self._warm_up_launch: CopyLaunch | None = None
        sizes, shape = self._sizes.block, shape or CopyShape()
        num_pages, num_slots = len(own.kv), len(own.epochs)
        self._launches = CopyLaunches(
            num_pages + num_slots * (2 + own.windows.shape[1]),
            num_slots,
            lambda blocks, handoffs: CopyLaunch(blocks, handoffs, sizes, shape, stream),
        )

    def open(self, instance: str, memory: MemoryExport) -> None:
        require_region(memory, kind="cuda-ipc", peer=instance)
        address = open_handle(memory.handle, peer=instance)
        self._peers[instance] = Peer(address, CacheAddresses.at(address, memory))

    def close_peer(self, instance: str) -> None:
        peer = self._peers.pop(instance, None)
        if peer is not None:
            peer.leaving = True
            peer.close_if_unread()
        self._forget_done()

    def warm_up(self) -> None:
        self._end_warm_up()
        self._forget_done()
        if self._warm_up_launch is not None or self._under_way:
            return
        self._warm_up_launch = launch = self._filled([WARM_UP], [self._own])
        self._wait_for_others()
        launch.enqueue(0, 0)

    def _end_warm_up(self) -> None:
        # NOTE: until it has ended, its kernels may still read what the next launch would fill.
        if self._warm_up_launch is not None and self._warm_up_launch.finished.query():
            self._launches.give_back(self._warm_up_launch)
            self._warm_up_launch = None

    def pull(self, wanted: Sequence[Wanted]) -> list[Pull]:
        self._end_warm_up()
        self._forget_done()
        pulls = [pull for batch in self._batches(wanted) for pull in self._start(batch)]
        self._under_way += pulls
        return [*pulls]

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        deadline = time.monotonic() + timeout_s
        return all(pull.wait(deadline - time.monotonic()) for pull in self._under_way)

    def _forget_done(self) -> None:
        """Drop every pull that has ended, even if its result is no longer wanted: ``done`` unmaps
        the peer's memory and returns the launch."""
        self._under_way = [pull for pull in self._under_way if not pull.done()]

    def _batches(self, wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
        batch: list[Wanted] = []
        num_bytes = 0
        for each in wanted:
            size = self._sizes.num_bytes(each)
            if batch and num_bytes + size > MAX_BATCH_BYTES:
                yield batch
                batch, num_bytes = [], 0
            batch.append(each)
            num_bytes += size
        if batch:
            yield batch

    def _start(self, wanted: list[Wanted]) -> Iterator[CudaPull]:
        peers = [self._peers[each.offer.instance] for each in wanted]
        batch = self._enqueue(wanted, peers)
        for index, (each, peer) in enumerate(zip(wanted, peers, strict=True)):
            peer.num_reading += 1
            yield CudaPull(each.offer, peer, batch, index, self._sizes.num_bytes(each))

    def _enqueue(self, wanted: list[Wanted], peers: list[Peer]) -> Batch:
        launch = self._filled(wanted, [peer.memory for peer in peers])
        self._wait_for_others()
        launch.enqueue(*self._sizes.counts(wanted))
        return Batch(launch, self._launches, len(wanted))

    def _filled(self, wanted: list[Wanted], exporters: list[CacheAddresses]) -> CopyLaunch:
        """A launch with the addresses of these handoffs."""
        num_pages, num_handoffs, num_windows = self._sizes.counts(wanted)
        num_blocks = num_pages + 2 * num_handoffs + num_windows
        launch = self._launches.take(num_blocks, num_handoffs)
        table, words = launch.table(num_blocks), launch.words(num_handoffs)
        fill_table(table, words, wanted, exporters, self._own, self._sizes)
        return launch

    def _wait_for_others(self) -> None:
        """Let the next launch wait for the streams whose work must precede it."""
        if self._after is not None and not self._after.query():
            self._stream.wait_stream(self._after)
        if self._after_steps:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
