"""Both sides of the handoff: a prefill worker's offer, and a decode worker's pull.

1. ``offer_of`` describes a finished prompt's cache (prefill/offers.py keeps it).
2. ``Pulling.connect_peer`` opens a prefill worker's memory and tests the path from there.
3. ``add`` queues a sequence whose cache lies with a peer (decode/transfers.py).
4. ``arrived`` starts the copies there is room for, and gives the sequences whose copy is done.

In workers of other roles the peers are the workers from which prefixes are pulled.
"""

import logging
from collections.abc import Callable, Iterator

from decode.transfers import KVTransfer, KVTransferQueue
from engine.cache.allocator import CacheAllocator
from engine.runner import Engine
from engine.sequence import Scheduled, Sequence
from transport.copy.digest import digest
from transport.copy.pull import CopyStream
from transport.copy.selftest import probe_peer
from transport.copy.tensors import CacheTensors
from transport.wire.errors import LayoutMismatch, PeerGone, StaleEpoch
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import PeerTested
from transport.wire.offers import Offer
from transport.wire.reports import FirstStep
from worker.reports import Reports
from worker.settings import HandoffSettings

log = logging.getLogger(__name__)

COPY_WAIT_S = 0.05
COPY_PATIENCE_S = 0.001
"""How long a step is delayed for copies that have just begun. Most copies take less, and then their
sequences join this step; a sequence that misses it waits for a whole step."""


def offer_of(instance: str, cache: CacheTensors, sequence: Sequence, *, verified: bool) -> Offer:
    """The offer of a finished prompt in ``cache``: what a decode worker needs to pull it, with a
    digest if ``verified``."""
    allocation = sequence.allocation
    assert allocation is not None, "offered without pages"
    pages, slot = tuple(allocation.pages), allocation.slot
    return Offer(
        instance=instance,
        block_table=pages,
        state_slot=slot.id,
        epoch=slot.epoch,
        num_tokens=sequence.num_cached,
        digest=digest(cache, pages, slot.id, sequence.num_cached) if verified else "",
    )


def first_steps(scheduled: Scheduled, now: float) -> tuple[FirstStep, ...]:
    """The transferred sequences whose first decode step has just ended."""
    found = []
    for sequence in scheduled.sequences:
        if sequence.transferred_at is not None and not sequence.ended:
            found.append(FirstStep(*sequence.key, now - sequence.transferred_at))
            sequence.transferred_at = None
    return tuple(found)


class Pulling:
    """A worker's pulls. ``transfers`` is the queue; ``stale_dropped`` counts offers whose memory
    was reused before the copy ended."""

    def __init__(
        self,
        engine: Engine,
        allocator: CacheAllocator,
        puller: CopyStream,
        reports: Reports,
        settings: HandoffSettings,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._puller = puller
        self._reports = reports
        self._verify = settings.verify
        self._clock = clock
        self.transfers = KVTransferQueue(
            allocator, engine.layout, puller, settings.pull_timeout_s, clock
        )
        self.stale_dropped = 0

    def connect_peer(self, instance: str, memory: MemoryExport) -> PeerTested:
        """Open a peer's memory and test the path from there; a bad path is closed again.

        This blocks the loop for some milliseconds, once for each peer that joins.
        """
        try:
            self.transfers.add_peer(instance, memory)
        except (PeerGone, LayoutMismatch) as error:
            log.error("cannot pull from %s: %s", instance, error)
            return PeerTested(instance, problem=str(error))
        test = probe_peer(self._puller, self._engine.cache, instance)
        if test.problem:
            log.error("cannot pull from %s: %s", instance, test.problem)
            self.remove_peer(instance)
        elif test.slow(memory.kind):
            log.warning(
                "pulling from %s is slow: %.1f GB/s; see `nvidia-smi topo -m`, `baton doctor`",
                instance, test.bytes_per_s / 1e9,
            )  # fmt: skip
        else:
            log.info("tested %s: %.1f GB/s", instance, test.bytes_per_s / 1e9)
        return PeerTested(instance, test.num_bytes, test.seconds, test.problem)

    def remove_peer(self, instance: str) -> None:
        """Forget a peer that has left. Copies under way continue; transfers that have not begun
        fail."""
        for sequence in self.transfers.drop_peer(instance):
            self._reports.failed(sequence, "peer_gone", f"{instance} left")

    def warm_up(self) -> None:
        """Prepare for a handoff that will probably be ordered in milliseconds."""
        self._puller.warm_up()

    def add(self, sequence: Sequence, offer: Offer, in_socket_s: float) -> None:
        sequence.num_cached = offer.num_tokens
        try:
            self.transfers.add(sequence, offer, in_socket_s)
        except PeerGone as error:
            self._reports.failed(sequence, "peer_gone", str(error))

    def arrived(self, *, num_growing: int) -> Iterator[Sequence]:
        """Start pulls, and yield the sequences whose cache has come and that may run now. They are
        reported, and bound unless their grammars still compile. A page stays free for each of
        ``num_growing`` other sequences."""
        if self.transfers.start_pulls(num_growing=num_growing):
            self.transfers.wait_for_copies(COPY_PATIENCE_S)
        for transfer in self.transfers.done():
            if self._finish(transfer):
                yield transfer.sequence
            else:
                self.transfers.release(transfer.sequence)
        now = self._clock()
        for sequence in self.transfers.overdue(now):
            sequence.ended = True
            self._reports.failed(sequence, "pull_timeout", "the copy did not finish in time")
        for sequence, num_stuck in self.transfers.without_room(now):
            self._give_back_without_room(sequence, num_stuck)

    def close(self) -> None:
        """Wait for copies under way, so that nothing writes the cache any more."""
        if not self._puller.close():
            log.error("a copy from a peer has not ended: this process may hang on its GPU")

    def _finish(self, transfer: KVTransfer) -> bool:
        """Bind and report a sequence whose copy is done. False if it has ended or fails now."""
        sequence, offer, pull = transfer.sequence, transfer.offer, transfer.pull
        assert pull is not None, "transferred without a pull"
        try:
            copied = pull.result()
        except StaleEpoch as error:
            self.stale_dropped += 1
            if not sequence.ended:
                self._reports.failed(sequence, "stale_offer", str(error))
            return False
        if sequence.ended:
            return False
        if problem := self._unverified(sequence, offer):
            self._reports.failed(sequence, "digest_mismatch", problem)
            return False
        if not sequence.compiling:  # otherwise it is bound when its grammar is compiled
            self._engine.bind(sequence.binding())
        sequence.transferred_at = self._clock()
        done = transfer.done(copied, sequence.transferred_at)
        self._reports.transferred(sequence, done, offer.instance, verified=bool(offer.digest))
        return True

    def _unverified(self, sequence: Sequence, offer: Offer) -> str:
        """The problem with the copied cache: its digest differs from the offer's, or the offer has
        none; "" if there is no problem."""
        if not offer.digest:
            return f"no digest came from {offer.instance}" if self._verify else ""
        assert sequence.allocation is not None, "transferred without pages"
        allocation = sequence.allocation
        pages = tuple(allocation.pages[: self._engine.layout.pages_for(offer.num_tokens)])
        copied = digest(self._engine.cache, pages, allocation.slot.id, offer.num_tokens)
        return (
            "" if offer.digest == copied else f"the cache changed on its way from {offer.instance}"
        )

    def _give_back_without_room(self, sequence: Sequence, num_stuck: int) -> None:
        """Fail a sequence that got no memory in time. That is this worker's fault only if
        ``num_stuck`` pages are held by copies that do not end."""
        sequence.ended = True
        if num_stuck:
            message = f"no room came: {num_stuck} pages are held by copies that do not end"
            self._reports.failed(sequence, "pull_timeout", message)
        else:
            self._reports.failed(sequence, "preempted", "no room came in time")
