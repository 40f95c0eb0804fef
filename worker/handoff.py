"""Both sides of the handoff: the offer of a worker, and the pull of another one.

1. ``offer_of`` describes the cache of a finished prompt, or of a sequence that moves
   (prefill/offers.py keeps it).
2. ``Handoffs.connect_peer`` opens another worker's memory and tests the path from there.
3. ``add`` queues a sequence whose cache lies with a peer (decode/transfers.py).
4. ``arrived`` starts the copies there is room for, and gives the sequences whose copy is done.

In workers that do not pull handoffs, the peers are the workers from which prefixes are pulled.
"""

import logging
from collections.abc import Iterator

from decode.transfers import KVTransfer
from engine.sequence import Scheduled, Sequence
from transport.copy.digest import digest
from transport.copy.queue import Ended
from transport.copy.selftest import probe_peer
from transport.wire.errors import LayoutMismatch, PeerGone
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import PeerTested, TransferDone
from transport.wire.offers import Offer
from transport.wire.reports import FirstStep
from worker.room import Room

log = logging.getLogger(__name__)

COPY_WAIT_S = 0.05
"""How long an idle worker waits for copies before it looks for orders again."""
COPY_PATIENCE_S, MOST_PATIENCE_S = 0.001, 0.004
"""How long a step is delayed for each copy that has just begun, and at most for all of them. Most
copies take less, and then their sequences join this step; one that misses it waits for a whole
step."""


def offer_of(room: Room, sequence: Sequence) -> Offer:
    """The offer of a sequence's cache: what another worker needs to pull it, with a digest if every
    handoff is verified. Pages for tokens to come are left out."""
    engine, settings, allocation = room.engine, room.settings, sequence.allocation
    assert allocation is not None, "offered without pages"
    num_tokens, slot = sequence.num_cached, allocation.slot
    pages = tuple(allocation.pages[: engine.layout.pages_for(num_tokens)])
    verified = settings.handoff.verify
    return Offer(
        instance=settings.instance,
        block_table=pages,
        state_slot=slot.id,
        epoch=slot.epoch,
        num_tokens=num_tokens,
        digest=digest(engine.cache, pages, slot.id, num_tokens) if verified else "",
    )


def first_steps(scheduled: Scheduled, now: float) -> tuple[FirstStep, ...]:
    """The transferred sequences whose first decode step has just ended."""
    found = []
    for sequence in scheduled.sequences:
        if sequence.transferred_at is not None and not sequence.ended:
            found.append(FirstStep(*sequence.key, now - sequence.transferred_at))
            sequence.transferred_at = None
    return tuple(found)


class Handoffs:
    """The handoffs to one worker, and the peers from which it pulls them."""

    def __init__(self, room: Room) -> None:
        self._room = room

    def connect_peer(
        self, instance: str, memory: MemoryExport, *, hands_off: bool = False
    ) -> PeerTested:
        """Open a peer's memory and test the path from there; a bad path is closed again.
        ``hands_off``: the peer computes prompts for this worker.

        This blocks the loop for some milliseconds, once for each peer that joins.
        """
        began = self._room.clock()
        try:
            self._room.transfers.add_peer(instance, memory)
        except (PeerGone, LayoutMismatch) as error:
            log.error("cannot pull from %s: %s", instance, error)
            return PeerTested(instance, problem=str(error))
        if hands_off:
            self._room.transfers.handing_off.add(instance)
        opened_s = self._room.clock() - began
        test = probe_peer(self._room.puller, self._room.engine.cache, instance)
        if test.problem:
            log.error("cannot pull from %s: %s", instance, test.problem)
            self.remove_peer(instance)
        elif test.slow(memory.kind):
            log.warning(
                "pulling from %s is slow: %.1f GB/s; see `nvidia-smi topo -m`, `baton doctor`",
                instance, test.bytes_per_s / 1e9,
            )  # fmt: skip
        else:
            log.info(
                "tested %s: %.1f GB/s; opened in %.3f s, done after %.3f",
                instance, test.bytes_per_s / 1e9, opened_s, self._room.clock() - began,
            )  # fmt: skip
        return PeerTested(instance, test.num_bytes, test.seconds, test.problem)

    def remove_peer(self, instance: str) -> None:
        """Forget a peer that has left. Copies under way continue; transfers that have not begun
        fail."""
        for sequence in self._room.transfers.drop_peer(instance):
            self._room.reports.failed(sequence, "peer_gone", f"{instance} left")

    def warm_up(self) -> None:
        """Prepare for a handoff that will probably be ordered in milliseconds."""
        self._room.puller.warm_up()

    def add(self, sequence: Sequence, offer: Offer, in_socket_s: float) -> None:
        """Queue a sequence whose cache is offered. Its order was in the socket for at most
        ``in_socket_s``."""
        sequence.num_cached = offer.num_tokens
        if offer.instance == self._room.settings.instance:
            self._resume(sequence, offer)
            return
        try:
            self._room.transfers.add(sequence, offer, in_socket_s)
        except PeerGone as error:
            self._room.reports.failed(sequence, "peer_gone", str(error))

    def _resume(self, sequence: Sequence, offer: Offer) -> None:
        """Go on with a sequence that was to move, and that no other worker could take."""
        offered = self._room.offers.take(*sequence.key)
        if offered is None:
            self._room.reports.failed(sequence, "stale_offer", "it is no longer offered here")
            return
        sequence.allocation, offered.allocation = offered.allocation, None
        sequence.keys, sequence.made = offered.keys, offered.made
        self._room.reports.transferred(
            sequence, TransferDone(*sequence.key, num_bytes=0), offer.instance, verified=False
        )
        self._room.sequences.add(sequence)

    def arrived(self) -> Iterator[Sequence]:
        """Start pulls, and yield the sequences whose cache has come and that may run now. They are
        reported. A page stays free for each sequence that grows."""
        room, transfers = self._room, self._room.transfers
        if started := transfers.start_pulls(num_growing=room.num_beside_transfers()):
            transfers.copies.wait(min(started * COPY_PATIENCE_S, MOST_PATIENCE_S))
        for ended in transfers.done():
            if self._finish(ended):
                yield ended.owner.sequence
            else:
                transfers.release(ended.owner.sequence)
        for sequence in transfers.overdue():
            sequence.ended = True
            room.reports.failed(sequence, "pull_timeout", "the copy did not finish in time")
        for sequence, num_stuck in transfers.without_room():
            self._give_back_without_room(sequence, num_stuck)

    def close(self) -> None:
        """Wait for copies under way, so that nothing writes the cache any more."""
        if not self._room.puller.close():
            log.error("a copy from a peer has not ended: this process may hang on its GPU")

    def _finish(self, ended: Ended[KVTransfer]) -> bool:
        """Report a sequence whose copy has ended. False if the sequence has ended, or fails now."""
        transfer, reports = ended.owner, self._room.reports
        sequence, offer = transfer.sequence, transfer.offer
        if ended.copied is None:
            if not sequence.ended:
                reports.failed(sequence, "stale_offer", ended.stale)
            return False
        if sequence.ended:
            return False
        if problem := self._unverified(ended):
            reports.failed(sequence, "digest_mismatch", problem)
            return False
        sequence.transferred_at = self._room.clock()
        done = transfer.done(ended.copied, sequence.transferred_at)
        reports.transferred(sequence, done, offer.instance, verified=bool(offer.digest))
        return True

    def _unverified(self, ended: Ended[KVTransfer]) -> str:
        """The problem with the copied cache: its digest differs from the offer's, or the offer has
        none although every handoff is verified; "" if there is no problem."""
        offer = ended.owner.offer
        if self._room.settings.handoff.verify and not offer.digest:
            return f"no digest came from {offer.instance}"
        return f"the cache changed on its way from {offer.instance}" if ended.damaged() else ""

    def _give_back_without_room(self, sequence: Sequence, num_stuck: int) -> None:
        """Fail a sequence that got no memory in time. That is this worker's fault only if
        ``num_stuck`` pages are held by copies that do not end."""
        sequence.ended = True
        if num_stuck:
            message = f"no room came: {num_stuck} pages are held by copies that do not end"
            self._room.reports.failed(sequence, "pull_timeout", message)
        else:
            self._room.reports.failed(sequence, "preempted", "no room came in time")
