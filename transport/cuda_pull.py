"""The copy stream of a CUDA worker: pulls run beside the decode steps, in order."""

import time
from dataclasses import dataclass

import torch

from transport.errors import StaleGeneration
from transport.messages import Offer
from transport.pull import Copied, Pull, copy_sequence
from transport.tensors import CacheTensors


@dataclass(frozen=True)
class CudaPull:
    """A copy enqueued on the copy stream, with the exporter's generation read behind it."""

    offer: Offer
    generation: torch.Tensor
    began: torch.cuda.Event
    finished: torch.cuda.Event
    num_bytes: int

    def done(self) -> bool:
        return bool(self.finished.query())

    def wait(self, timeout_s: float) -> bool:
        # NOTE: a copy takes microseconds to a few milliseconds, and the driver has no wait with a
        # deadline; only a worker without any other work comes here.
        deadline = time.monotonic() + timeout_s
        while not self.done():
            if time.monotonic() >= deadline:
                return False
        return True

    def result(self) -> Copied:
        assert self.done(), "result of a pull still under way"
        generation = int(self.generation)
        if generation != self.offer.generation:
            raise StaleGeneration(
                f"state slot {self.offer.state_slot} of {self.offer.instance} has generation "
                f"{generation}, the offer {self.offer.generation}"
            )
        return Copied(self.num_bytes, self.began.elapsed_time(self.finished) / 1000)


class CudaCopyStream:
    """A CopyStream on one CUDA device."""

    def __init__(self, own: CacheTensors) -> None:
        self._own = own
        self._stream = torch.cuda.Stream(own.kv.device)

    def pull(
        self, peer: CacheTensors, offer: Offer, *, block_table: tuple[int, ...], state_slot: int
    ) -> Pull:
        assert len(block_table) == len(offer.block_table), "pages at both ends differ in number"
        # The slots are free, so no launched step touches them; what this worker itself enqueued
        # for them before (poison, in tests) still has to come first.
        self._stream.wait_stream(torch.cuda.current_stream())
        began = torch.cuda.Event(enable_timing=True)
        finished = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            began.record()
            num_bytes = copy_sequence(
                peer, offer.block_table, offer.state_slot, self._own, block_table, state_slot
            )
            generation = torch.empty((), dtype=torch.int64, pin_memory=True)
            generation.copy_(peer.generations[offer.state_slot], non_blocking=True)
            finished.record()
        return CudaPull(offer, generation, began, finished, num_bytes)

    def close(self) -> None:
        self._stream.synchronize()
