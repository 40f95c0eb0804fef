"""The prompts, transfers and running sequences of one worker, and the memory that they share.

A prompt or a transfer is admitted only while a page is left for every sequence that will grow. If
pages run out nevertheless, the youngest prompt or transfer is preempted, to be retried elsewhere.
"""

from decode.scheduler import DecodeScheduler
from decode.transfers import KVTransferQueue
from engine.sequence import Sequence, youngest_since
from prefill.scheduler import PrefillScheduler
from worker.reports import Reports


class Room:
    """The work and memory of one worker. ``prompts`` and ``sequences`` are set once they are
    made."""

    prompts: PrefillScheduler
    sequences: DecodeScheduler

    def __init__(self, transfers: KVTransferQueue, reports: Reports) -> None:
        self._transfers = transfers
        self._reports = reports

    def active(self) -> list[Sequence]:
        """Every sequence that has not ended here, except offered ones."""
        transferred, running = self._transfers.sequences(), self.sequences.running
        return [*self.prompts.sequences(), *transferred, *running]

    def end(self, sequence: Sequence) -> None:
        """End a sequence; its memory is free once nothing under way uses it."""
        if sequence in self.sequences.running:
            self.sequences.end(sequence)
        elif sequence in self._transfers.sequences():
            self._transfers.end(sequence)
        else:
            self.prompts.end(sequence)

    def num_beside_transfers(self) -> int:
        """Pages to keep free beside a transfer that is admitted."""
        return len(self.sequences.running) + len(self.prompts.filling)

    def num_beside_prompts(self) -> int:
        """Pages to keep free beside a prompt that is admitted."""
        return len(self.sequences.running) + len(self._transfers.receiving)

    def leaving(self) -> list[Sequence]:
        """Prompts and transfers that have ended; their pages are freed when their last batch or
        copy is done."""
        return [*self.prompts.leaving(), *self._transfers.leaving()]

    def reclaim(self, arrival: int) -> bool:
        """Preempt the youngest prompt or transfer, if it is younger than ``arrival``; returns True
        if there was one."""
        held = [*self.prompts.filling, *self._transfers.holding_pages()]
        youngest = youngest_since(held, arrival)
        if youngest is None:
            return False
        self.end(youngest)
        self._reports.failed(youngest, "preempted", "out of pages")
        return True
