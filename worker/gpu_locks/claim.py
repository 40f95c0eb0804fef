"""A worker claims a GPU: it locks one of the GPU's places, and keeps the lock until it has ended.

1. All workers agree on how many places a GPU has: each keeps a shared lock on the file gpu_share,
   and only a worker that is alone may change the number in it.
2. One worker of the node at a time tries the locks of all places that it may take. Of those that
   are free, and not on a GPU that is marked as unfit, it takes one on the GPU with the fewest
   holders, and writes into the file which process it is.
3. Where none is free it looks again every ``LOOK_S``, until its deadline. Workers that wait for the
   same GPU get it in any order.

No lock is ever given back. The end of the process frees them all, so a worker that hangs, that is
stopped or that was fenced keeps the GPU, whose memory it still fills. A child that was forked
without exec would keep them too, as it would keep the driver's files.
"""

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from transport.wire.errors import BatonError
from worker.gpu_locks.folder import LockFolder, try_lock
from worker.gpu_locks.holder import Holder, this_process, written_in
from worker.gpu_locks.marks import UnfitMark, how_to_clear, unfit_gpus

END_S = 30.0
"""How long the previous holder of a place may take to end, once its lock is free."""
LOOK_S = 0.1
"""Time between two looks at the locks while a worker waits. No event tells it more: the holder may
be in another container, where its end cannot be seen, and a mark ends by the clock."""

log = logging.getLogger(__name__)


class NoFreeGpu(BatonError):
    """No GPU that this worker may take got free in time; the message says what holds each."""


@dataclass(frozen=True)
class GpuClaim:
    """The GPU that this process has claimed. Closing ``fds`` would release it."""

    gpu: str
    fds: tuple[int, int]


@dataclass(frozen=True)
class Place:
    """One place on a GPU; ``mine``: this process has its lock."""

    gpu: str
    file: str
    fd: int
    mine: bool


@dataclass(frozen=True)
class _Look:
    """The place that was ``taken`` or None, the (GPU, process that its lock file names) of each
    place that others hold, and the marks."""

    taken: Place | None
    held: Sequence[tuple[str, Holder | None]]
    unfit: Mapping[str, UnfitMark]

    def reason(self) -> str:
        """Which processes hold each GPU that was not taken, and what to do about marks."""
        by_gpu: dict[str, list[str]] = {}
        for gpu, who in self.held:
            by_gpu.setdefault(gpu, []).append(str(who or "another worker"))
        said = [f"{gpu} is held by {' and '.join(by)}" for gpu, by in by_gpu.items()]
        said += map(str, self.unfit.values())
        return "; ".join(said + ([how_to_clear(self.unfit.values())] if self.unfit else []))


def claim_gpu(
    folder: LockFolder,
    gpus: Sequence[str],
    share: int,
    instance: str,
    *,
    timeout_s: float,
    on_waiting: Callable[[str], None] = lambda reason: None,
) -> GpuClaim:
    """Claim one of ``gpus`` (UUIDs, most wanted first) until this process ends; up to ``share``
    processes may claim the same GPU.

    Waits ``timeout_s`` at most, 0: until there is one. ``on_waiting`` is told why it waits, each
    time that the holders or the marks change. Raises NoFreeGpu; ValueError if other workers have
    another ``share`` or the folder cannot be used; DeadlineExceeded if it stays locked; OSError.
    """
    share_fd = folder.agree_on_share(share)
    try:
        claimant = _Claimant(folder, gpus, share, instance)
        place = claimant.take(timeout_s or math.inf, on_waiting)
    except BaseException:
        os.close(share_fd)
        raise
    return GpuClaim(place.gpu, (place.fd, share_fd))


def choose(places: Sequence[Place], unfit: Collection[str]) -> Place | None:
    """The free place on the GPU with the fewest holders, the first of several such GPUs."""
    num_held = Counter(place.gpu for place in places if not place.mine)
    free = [place for place in places if place.mine and place.gpu not in unfit]
    return min(free, key=lambda place: num_held[place.gpu], default=None)


@dataclass(frozen=True)
class _Claimant:
    folder: LockFolder
    gpus: Sequence[str]
    share: int
    instance: str

    def take(self, timeout_s: float, on_waiting: Callable[[str], None]) -> Place:
        deadline, told = time.monotonic() + timeout_s, None
        while True:
            look = self._look()
            if look.taken is not None:
                return look.taken
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise NoFreeGpu(f"gpu: none is free after {timeout_s:.0f} s: {look.reason()}")
            causes = (look.held, sorted(look.unfit))
            if causes != told:
                on_waiting(look.reason())
                told = causes
            time.sleep(min(LOOK_S, left_s))

    def _look(self) -> _Look:
        """Take a place if one is free."""
        with self.folder.exclusive():
            places = [
                self._open(gpu, f"{gpu}.{number}")
                for gpu in self.gpus
                for number in range(self.share)
            ]
            # Read after the locks: the mark of a GPU is written before its holder ends.
            marked = unfit_gpus(self.folder.path)
            unfit = {gpu: marked[gpu] for gpu in self.gpus if gpu in marked}
            taken = choose(places, unfit)
            held = [(place.gpu, written_in(place.fd)) for place in places if not place.mine]
            for place in places:
                if place is not taken:
                    os.close(place.fd)
            before = None
            if taken is not None:
                before = written_in(taken.fd)
                self.folder.write(taken.fd, this_process(self.instance).encode())
        look = _Look(taken, held, unfit)
        if taken is not None and unfit:
            log.warning("took %s, and not others: %s", taken.gpu, look.reason())
        # A process that ends may free its GPU's memory after its locks.
        if taken is not None and before is not None and not before.has_ended(END_S):
            log.warning("%s, which held %s before, has not ended", before, taken.gpu)
        return look

    def _open(self, gpu: str, file: str) -> Place:
        while True:
            fd = self.folder.open(file)
            mine = try_lock(fd)
            if self.folder.has(file, fd):
                return Place(gpu, file, fd, mine)
            os.close(fd)  # the file was removed meanwhile: others lock its successor
