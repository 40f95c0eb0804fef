"""From a Decode message to a running sequence: room, pull, landed.

    pending     accepted; no memory yet, the prefill worker still holds everything
    receiving   has pages and a state slot, which the copy stream is writing

Either may take ``pull_timeout_s``.

Nothing is reserved before the pull can start, and a reserved slot is reused only after its copy
is done, whatever became of the request meanwhile.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from engine.cache.books import CacheBooks
from engine.sequence import Sequence, attempts_up_to, youngest_since
from transport.errors import PeerGone
from transport.layout import CacheLayout
from transport.messages import Landed, MemoryExport, Offer
from transport.pull import Copied, CopyStream, Pull, Wanted


@dataclass(eq=False)
class Admission:
    """A sequence on its way in. ``pull`` is None while pending. ``unseen_s`` is how long its order
    may have lain in the socket; ``room_at`` and ``launched_at`` are when there was room and when
    its copy had been enqueued, ``deadline`` when that must be done."""

    sequence: Sequence
    offer: Offer
    unseen_s: float = 0.0
    pull: Pull | None = None
    room_at: float = 0.0
    launched_at: float = 0.0
    deadline: float = 0.0

    def landed(self, copied: Copied, now: float) -> Landed:
        """What to report when the worker's loop sees the finished copy at ``now``."""
        return Landed(
            *self.sequence.key,
            num_bytes=copied.num_bytes,
            unseen_s=self.unseen_s,
            room_s=self.room_at - self.sequence.received_at,
            launch_s=self.launched_at - self.room_at,
            copy_s=copied.copy_s,
            boundary_s=max(0.0, now - self.launched_at - copied.copy_s),
        )


class AdmissionQueue:
    """Pending and receiving admissions, and the peers whose memory they come from."""

    def __init__(
        self,
        books: CacheBooks,
        layout: CacheLayout,
        puller: CopyStream,
        pull_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._books = books
        self._layout = layout
        self._puller = puller
        self._pull_timeout_s = pull_timeout_s
        self._clock = clock
        self._peers: set[str] = set()
        self.pending: list[Admission] = []
        self.receiving: list[Admission] = []

    def add_peer(self, instance: str, memory: MemoryExport) -> None:
        """Map a prefill worker's memory, unless it is; raises PeerGone, LayoutMismatch."""
        self._layout.require_same(memory.layout, peer=instance)
        if instance not in self._peers:
            self._puller.open(instance, memory)
            self._peers.add(instance)

    def drop_peer(self, instance: str) -> list[Sequence]:
        """Forget a peer; pulls under way keep its mapping. Returns what can no longer come."""
        self._peers.discard(instance)
        self._puller.close_peer(instance)
        lost = [a for a in self.pending if a.offer.instance == instance]
        for admission in lost:
            self.pending.remove(admission)
        return [admission.sequence for admission in lost]

    def drop_peers(self) -> None:
        for instance in list(self._peers):
            self.drop_peer(instance)

    @property
    def has_peers(self) -> bool:
        return bool(self._peers)

    def add(self, sequence: Sequence, offer: Offer, unseen_s: float) -> None:
        """Queue an admission; raises PeerGone when the offer's worker is not known here."""
        if offer.instance not in self._peers:
            raise PeerGone(f"prefill worker {offer.instance} is not known here")
        admission = Admission(sequence, offer, unseen_s)
        insort(self.pending, admission, key=lambda a: a.sequence.arrival)

    def start_pulls(self, *, num_running: int) -> bool:
        """Start every pull there is room for, together and oldest first, keeping a page free for
        the growth of each running sequence. Returns whether there was one."""
        admitted: list[Admission] = []
        wanted: list[Wanted] = []
        while self.pending:
            admission = self.pending[0]
            sequence, offer = admission.sequence, admission.offer
            num_pages = self._layout.pages_for(offer.num_tokens + 1)
            active = num_running + len(self.receiving) + len(admitted)
            if not self._books.can_reserve(num_pages + active):
                break
            self.pending.pop(0)
            admission.room_at = self._clock()
            holding = sequence.holding = self._books.reserve(num_pages)
            block_table = tuple(holding.pages[: len(offer.block_table)])
            wanted.append(Wanted(offer, block_table, holding.slot.id))
            admitted.append(admission)
        if admitted:
            self._launch(admitted, wanted)
        return bool(admitted)

    def _launch(self, admitted: list[Admission], wanted: list[Wanted]) -> None:
        pulls = self._puller.pull(wanted)
        launched_at = self._clock()
        for admission, pull in zip(admitted, pulls, strict=True):
            admission.pull = pull
            admission.launched_at = launched_at
            admission.deadline = launched_at + self._pull_timeout_s
        self.receiving += admitted

    def landed(self) -> list[Admission]:
        """Admissions whose copy is done, with or without success; they leave the queue."""
        done = [a for a in self.receiving if a.pull is not None and a.pull.done()]
        for admission in done:
            self.receiving.remove(admission)
        return done

    def wait_for_copies(self, timeout_s: float) -> None:
        """Wait until all copies under way are done, at most ``timeout_s``."""
        deadline = self._clock() + timeout_s
        for admission in self.receiving:
            assert admission.pull is not None, "receiving without a pull"
            if not admission.pull.wait(max(0.0, deadline - self._clock())):
                return

    def overdue(self, now: float) -> list[Sequence]:
        """Sequences whose pull is past its deadline. They stay until the copy is done, since it
        still writes their slots."""
        return [a.sequence for a in self.receiving if now >= a.deadline and not a.sequence.ended]

    def without_room(self, now: float) -> list[tuple[Sequence, int]]:
        """Take out the pending that no room came for in time; each with how many pages copies past
        their deadline hold."""
        late = [a for a in self.pending if now - a.sequence.received_at >= self._pull_timeout_s]
        if not late:
            return []
        self.pending = [a for a in self.pending if a not in late]
        stuck = sum(a.sequence.num_pages_held for a in self.receiving if now >= a.deadline)
        return [(admission.sequence, stuck) for admission in late]

    def cancel(self, request_id: str, attempt: int) -> list[Sequence]:
        """End the request's admissions up to ``attempt``, and tell which; copies under way land
        into nothing."""
        found = attempts_up_to(self.sequences(), request_id, attempt)
        for sequence in found:
            sequence.ended = True
        self.pending = [a for a in self.pending if not a.sequence.ended]
        return found

    def reclaim(self, arrival: int) -> Sequence | None:
        """End the youngest admission that holds memory, if it is younger than ``arrival``."""
        held = (a.sequence for a in self.receiving if not a.sequence.ended)
        youngest = youngest_since(held, arrival)
        if youngest is not None:
            youngest.ended = True
        return youngest

    def num_pages_coming(self) -> int:
        """Pages of admissions that have ended, free when their copies are done; but not of those
        that are overdue, for which nobody should wait."""
        now = self._clock()
        coming = (a.sequence for a in self.receiving if a.sequence.ended and now < a.deadline)
        return sum(sequence.num_pages_held for sequence in coming)

    def release(self, sequence: Sequence) -> None:
        """Free what an admission held that will not run."""
        assert sequence.holding is not None, "landed without pages"
        self._books.release(sequence.holding)
        sequence.holding = None

    def sequences(self) -> list[Sequence]:
        """Sequences on their way in that have not ended."""
        admissions = [*self.pending, *self.receiving]
        return [a.sequence for a in admissions if not a.sequence.ended]
