"""The queue of KV transfers into a decode worker: from a Decode message to a running sequence.

    pending     accepted; no memory yet, the prefill worker still holds everything
    receiving   has pages and a state slot, which the copy stream is writing

Each of the two may take ``pull_timeout_s``.

Nothing is reserved before the pull can start, and a reserved slot is reused only after its copy
is done, even if the request has ended meanwhile. Pages that this worker keeps already, such as
those of a conversation's earlier turns, are shared and not pulled.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.cache.kept import KeptPrefix
from engine.sequence import Sequence
from transport.copy.pull import Copied, CopyStream, Wanted
from transport.copy.queue import CopyQueue, Ended, Landing
from transport.wire.errors import PeerGone
from transport.wire.layout import CacheLayout
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import TransferDone
from transport.wire.offers import Offer


@dataclass(eq=False)
class KVTransfer:
    """A sequence whose cache is to be pulled. ``in_socket_s``: how long its order may have waited
    in the socket. ``memory_at``, ``launched_at``: when it got memory, and when its copy was
    enqueued."""

    sequence: Sequence
    offer: Offer
    in_socket_s: float = 0.0
    memory_at: float = 0.0
    launched_at: float = 0.0

    def done(self, copied: Copied, now: float) -> TransferDone:
        """The report of a copy whose end the worker's loop sees at ``now``."""
        return TransferDone(
            *self.sequence.key,
            num_bytes=copied.num_bytes,
            in_socket_s=self.in_socket_s,
            wait_memory_s=self.memory_at - self.sequence.received_at,
            launch_s=self.launched_at - self.memory_at,
            copy_s=copied.copy_s,
            boundary_s=max(0.0, now - self.launched_at - copied.copy_s),
        )


class KVTransferQueue:
    """Pending and receiving transfers, and the peers from which they are pulled. ``handing_off``:
    the peers that compute prompts for this worker. ``copies`` are the copies of the receiving
    ones."""

    def __init__(
        self,
        allocator: CacheAllocator,
        layout: CacheLayout,
        puller: CopyStream,
        copies: CopyQueue[KVTransfer],
        clock: Callable[[], float],
    ) -> None:
        self._allocator = allocator
        self._layout = layout
        self._puller = puller
        self._clock = clock
        self.copies = copies
        self.peers: set[str] = set()
        self.handing_off: set[str] = set()
        self.pending: list[KVTransfer] = []
        self._unpublished: list[CacheAllocation] = []

    def add_peer(self, instance: str, memory: MemoryExport) -> None:
        """Map a peer's memory, unless it is mapped already; raises PeerGone, LayoutMismatch."""
        self._layout.require_same(memory.layout, peer=instance)
        if instance not in self.peers:
            self._puller.open(instance, memory)
            self.peers.add(instance)

    def drop_peer(self, instance: str) -> list[Sequence]:
        """Forget a peer; pulls under way keep its mapping. Returns the sequences whose pull can no
        longer start."""
        self.peers.discard(instance)
        self.handing_off.discard(instance)
        self._puller.close_peer(instance)
        lost = [each for each in self.pending if each.offer.instance == instance]
        for transfer in lost:
            self.pending.remove(transfer)
        return [transfer.sequence for transfer in lost]

    def drop_peers(self) -> None:
        for instance in list(self.peers):
            self.drop_peer(instance)

    def add(self, sequence: Sequence, offer: Offer, in_socket_s: float) -> None:
        """Queue a transfer; raises PeerGone when the offer's worker is not known here."""
        if offer.instance not in self.peers:
            raise PeerGone(f"worker {offer.instance} is not known here")
        transfer = KVTransfer(sequence, offer, in_socket_s)
        insort(self.pending, transfer, key=lambda each: each.sequence.arrival)

    def start_pulls(self, *, num_growing: int) -> int:
        """Start all pulls that fit in memory, oldest first, as one batch. A page stays free for
        each transfer and for each of ``num_growing`` other sequences. Returns their number."""
        admitted: list[KVTransfer] = []
        wanted: list[Wanted] = []
        while self.pending:
            transfer = self.pending[0]
            sequence, offer = transfer.sequence, transfer.offer
            num_pages = self._layout.pages_for(offer.num_tokens + 1)
            active = num_growing + len(self.copies) + len(admitted)
            if not self._has_room(transfer, num_pages + active):
                break
            self.pending.pop(0)
            transfer.memory_at = self._clock()
            wanted.append(self._reserve(sequence, offer, num_pages))
            admitted.append(transfer)
        if admitted:
            self._launch(admitted, wanted)
        return len(admitted)

    def _has_room(self, transfer: KVTransfer, num_pages: int) -> bool:
        if self._allocator.can_reserve(num_pages):
            return True
        return self._shareable(transfer.sequence, transfer.offer, num_pages) is not None

    def _reserve(self, sequence: Sequence, offer: Offer, num_pages: int) -> Wanted:
        """Reserve pages and a state slot for a sequence; returns the part of its offer to pull."""
        prefix = self._shareable(sequence, offer, num_pages)
        if prefix is not None:
            if sequence.keys is not None:
                self._allocator.kept.note_prompt(sequence.keys, offer.num_tokens)
            self._allocator.kept.touch(prefix.key)
            sequence.made.append(prefix)
        allocation = self._allocator.reserve_unpublished(num_pages, prefix)
        sequence.allocation = allocation
        self._unpublished.append(allocation)
        return Wanted.into(
            allocation.pages, allocation.slot.id, offer, num_shared=allocation.num_shared
        )

    def _shareable(self, sequence: Sequence, offer: Offer, num_pages: int) -> KeptPrefix | None:
        """A kept prefix whose pages can be used instead of offered ones, if ``num_pages`` fit with
        it. None if every handoff is verified: the same tokens' KV may differ in its last bits."""
        if sequence.keys is None or offer.digest:
            return None
        prefix = self._allocator.prefixes.longest(sequence.keys, offer.num_tokens)
        if prefix is None or not self._allocator.can_share(num_pages, prefix):
            return None
        return prefix

    def _launch(self, admitted: list[KVTransfer], wanted: list[Wanted]) -> None:
        pulls = self._puller.pull(wanted)
        launched_at = self._clock()
        for transfer, pull in zip(admitted, pulls, strict=True):
            transfer.launched_at = launched_at
            allocation, offer = transfer.sequence.allocation, transfer.offer
            assert allocation is not None, "pulled without pages"
            landing = Landing(allocation.pages, allocation.slot.id, offer.num_tokens, offer.digest)
            self.copies.add(transfer, pull, landing)
        for transfer in admitted:
            if transfer.sequence.keys is not None:
                # The answer may be kept later: hash while the bytes move.
                transfer.sequence.keys.hash_all()

    def publish(self) -> None:
        """Publish the epochs of the state slots of receiving sequences. No peer needs them soon, so
        this is called after copies and steps are launched."""
        while self._unpublished:
            allocation = self._unpublished.pop()
            if not allocation.released:
                self._allocator.publish(allocation)

    @property
    def receiving(self) -> list[KVTransfer]:
        """The transfers whose copy is under way."""
        return list(self.copies)

    def done(self) -> list[Ended[KVTransfer]]:
        """Remove and return the transfers whose copy has ended, with or without success."""
        return self.copies.ended()

    def overdue(self) -> list[Sequence]:
        """Sequences whose pull is past its deadline. They stay queued until the copy has ended,
        since it still writes their slots."""
        late = [transfer.sequence for transfer in self.copies.overdue()]
        return [sequence for sequence in late if not sequence.ended]

    def without_room(self) -> list[tuple[Sequence, int]]:
        """Remove the pending transfers that got no memory in time. Each is returned with the number
        of pages held by copies past their deadline."""
        now, timeout_s = self._clock(), self.copies.timeout_s
        late = [each for each in self.pending if now - each.sequence.received_at >= timeout_s]
        if not late:
            return []
        self.pending = [each for each in self.pending if each not in late]
        overdue = self.copies.overdue()
        holds = [hold for transfer in overdue for hold in transfer.sequence.page_holds]
        stuck = self._allocator.num_pages_freed_by(holds)
        return [(transfer.sequence, stuck) for transfer in late]

    def end(self, sequence: Sequence) -> None:
        """End a transfer; memory that a copy still writes is released when the copy is done."""
        sequence.ended = True
        self.pending = [each for each in self.pending if not each.sequence.ended]

    def holding_pages(self) -> list[Sequence]:
        """Sequences that have not ended and whose pages are being written."""
        return [each.sequence for each in self.copies if not each.sequence.ended]

    def leaving(self) -> list[Sequence]:
        """Ended transfers whose pages are freed when their copies are done. Overdue copies are left
        out: no running sequence should wait for them."""
        return [each.sequence for each in self.copies.on_time() if each.sequence.ended]

    def release(self, sequence: Sequence) -> None:
        """Free the memory of a transfer whose sequence will not run."""
        assert sequence.allocation is not None, "transferred without pages"
        self._allocator.release(sequence.allocation)
        sequence.allocation = None

    def sequences(self) -> list[Sequence]:
        """Sequences being transferred that have not ended."""
        transfers = [*self.pending, *self.copies]
        return [each.sequence for each in transfers if not each.sequence.ended]
