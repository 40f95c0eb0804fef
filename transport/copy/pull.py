"""The data path of a handoff: copy an offer's pages and state out of a peer's memory.

The puller writes only pages and a state slot that its own worker reserved for this sequence; the
peer may end during the copy without harm. After the copy the puller compares the exporter's epoch
of the state slot with the offer's. If they are equal, nothing was reused during the copy, since the
exporter increments the epoch before it writes for another sequence.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

import torch
from msgspec import structs

from transport.copy import shm
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.errors import LayoutMismatch, PeerGone, StaleEpoch
from transport.wire.memory_export import MemoryExport, MemoryKind
from transport.wire.offers import Offer

CLOSE_S = 5.0
"""Far more than any copy takes: a copy that lasts longer will not end."""


@dataclass(frozen=True)
class Wanted:
    """One pull: ``offer``, from the peer that it names, into these pages and this state slot.

    ``in_probe``: page ids and state slots at both ends are ids in the probes (selftest.py).
    """

    offer: Offer
    block_table: tuple[int, ...]
    state_slot: int
    in_probe: bool = False

    def __post_init__(self) -> None:
        assert len(self.block_table) == len(self.offer.block_table), "pages at both ends differ"

    @classmethod
    def into(
        cls, pages: Sequence[int], state_slot: int, offer: Offer, *, num_shared: int
    ) -> "Wanted":
        """The pull of an offer without the part that the first ``num_shared`` of ``pages`` hold
        already."""
        offered = offer.block_table
        missing = offer
        if num_shared:
            missing = structs.replace(offer, block_table=offered[num_shared:])
        return cls(missing, tuple(pages[num_shared : len(offered)]), state_slot)


@dataclass(frozen=True)
class Copied:
    """The result of a pull. ``copy_s``: duration of the copy alone, of all handoffs that were
    copied together."""

    num_bytes: int
    copy_s: float


class Pull(Protocol):
    """A copy under way. The memory that it writes must not be reused before ``done`` is True."""

    def done(self) -> bool: ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until the copy is done, at most ``timeout_s``; returns True if it is."""
        ...

    def result(self) -> Copied:
        """The result of a pull that is done; raises StaleEpoch."""
        ...


def poll_until_done(pull: Pull, timeout_s: float) -> bool:
    """``Pull.wait`` for a copy whose driver has no wait with a deadline: ask it again and again.

    A copy takes microseconds to a few milliseconds, and only a worker without other work waits.
    """
    deadline = time.monotonic() + timeout_s
    while not pull.done():
        if time.monotonic() >= deadline:
            return False
    return True


class CopyStream(Protocol):
    """A worker's open memory of its peers, and its pulls from there, in order, beside its steps. A
    peer is opened once, and is known by its instance id."""

    def open(self, instance: str, memory: MemoryExport) -> None:
        """Map a peer's memory; raises PeerGone, LayoutMismatch."""
        ...

    def close_peer(self, instance: str) -> None:
        """Unmap the peer's memory as soon as no pull reads it; no-op for a peer that is not
        open."""
        ...

    def pull(self, wanted: Sequence[Wanted]) -> list[Pull]:
        """Start copying from open peers. The target memory is reserved for the copy: no launched
        step uses it, and nothing else writes it until the pull is done."""
        ...

    def warm_up(self) -> None:
        """Run the host's code of ``pull`` for no bytes, because a pull will probably follow: code
        that has not run for a while is slow."""
        ...

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Drop pulls that have not begun, and wait at most ``timeout_s`` for the others. True if
        all have ended, so that no copy writes this worker's memory."""
        ...


class NoPeers:
    """The CopyStream of a worker that never pulls."""

    def open(self, instance: str, memory: MemoryExport) -> None:
        raise PeerGone(f"this worker does not pull, so it opens no memory of {instance}")

    def close_peer(self, instance: str) -> None:
        pass

    def pull(self, wanted: Sequence[Wanted]) -> list[Pull]:
        raise AssertionError("a pull from a peer that is not open")

    def warm_up(self) -> None:
        pass

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        return True


class ThreadPull:
    """A Pull on a copy thread."""

    def __init__(self, future: "Future[Copied]") -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def wait(self, timeout_s: float) -> bool:
        return bool(wait([self._future], timeout_s).done)

    def result(self) -> Copied:
        assert self._future.done(), "result of a pull still under way"
        return self._future.result()


class CopyThread:
    """The copy stream of a CPU worker: one thread."""

    def __init__(self, own: CacheTensors) -> None:
        self._own = own
        self._peers: dict[str, CacheTensors] = {}
        self._under_way: list[Future[Copied]] = []
        self._stream = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copy-stream")

    def open(self, instance: str, memory: MemoryExport) -> None:
        require_region(memory, kind="shm", peer=instance)
        mapping = shm.open_segment(memory.handle, memory.size_bytes)
        buffer = torch.frombuffer(mapping, dtype=torch.uint8)
        self._peers[instance] = CacheTensors.over(buffer, memory.layout, memory.pools)

    def close_peer(self, instance: str) -> None:
        # The mapping ends with the last tensor over it; a pull under way has some.
        self._peers.pop(instance, None)
        self._forget_done()

    def pull(self, wanted: Sequence[Wanted]) -> list[Pull]:
        self._forget_done()
        futures = [
            self._stream.submit(copy_offer, self._own, self._peers[each.offer.instance], each)
            for each in wanted
        ]
        self._under_way += futures
        return [ThreadPull(future) for future in futures]

    def warm_up(self) -> None:
        pass

    def _forget_done(self) -> None:
        """Drop the pulls that have ended: a failed copy keeps its source tensors, and so the
        mapping."""
        self._under_way = [future for future in self._under_way if not future.done()]

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        self._stream.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in self._under_way if not future.cancelled()]
        return not wait(begun, timeout_s).not_done


def require_region(memory: MemoryExport, *, kind: MemoryKind, peer: str) -> None:
    """Raise LayoutMismatch unless ``memory`` is of ``kind`` and as large as its layout says."""
    if memory.kind != kind:
        raise LayoutMismatch(f"memory of kind {kind!r} here, {memory.kind!r} at {peer}")
    size_bytes = Region.of(memory.layout, memory.pools).size_bytes
    if memory.size_bytes != size_bytes:
        raise LayoutMismatch(f"{peer} exports {memory.size_bytes} bytes, not {size_bytes}")


def check_epoch(offer: Offer, epoch: int) -> None:
    """Raise StaleEpoch unless the exporter's ``epoch`` after the copy is the offer's."""
    if epoch != offer.epoch:
        raise StaleEpoch(
            f"state slot {offer.state_slot} of {offer.instance} has epoch {epoch}, "
            f"the offer {offer.epoch}"
        )


def copy_offer(own: CacheTensors, peer: CacheTensors, wanted: Wanted) -> Copied:
    """Copy an offer, then check its epoch; raises StaleEpoch."""
    began = time.perf_counter()
    offer = wanted.offer
    if wanted.in_probe:
        assert own.probe is not None, "no probe here"
        assert peer.probe is not None, "no probe there"
        own, peer = own.probe, peer.probe
    num_bytes = copy_sequence(
        peer, offer.block_table, offer.state_slot, own, wanted.block_table, wanted.state_slot,
        offer.num_tokens,
    )  # fmt: skip
    copy_s = time.perf_counter() - began
    check_epoch(offer, int(peer.epochs[offer.state_slot]))
    return Copied(num_bytes, copy_s)


def copy_sequence(
    source: CacheTensors,
    source_pages: tuple[int, ...],
    source_slot: int,
    target: CacheTensors,
    target_pages: tuple[int, ...],
    target_slot: int,
    num_tokens: int,
) -> int:
    """Copy whole pages and one state slot, with the state behind ``num_tokens`` tokens, between
    regions; returns the number of bytes."""
    device = target.kv.device
    pages = source.kv[torch.tensor(source_pages, dtype=torch.int64, device=device)]
    target.kv[torch.tensor(target_pages, dtype=torch.int64, device=device)] = pages
    target.conv[target_slot].copy_(source.conv[source_slot])
    target.recurrent[target_slot].copy_(source.recurrent[source_slot])
    windows = source.windows_of(source_slot, num_tokens)
    target.windows[target_slot, : len(windows)] = windows
    states = source.conv[source_slot].nbytes + source.recurrent[source_slot].nbytes
    return pages.nbytes + states + windows.nbytes
