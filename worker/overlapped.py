"""The batches of prompts that a worker computes beside decode steps (engine/overlap.py)."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.batch import StepResult
from engine.overlap import OverlappedBatch
from engine.sequence import Scheduled
from transport.wire.messages import Targets
from worker.room import Room

MOST = 2
"""Batches under way: one is computed, and the next one waits behind it."""
ENQUEUE_SHARE = 0.5
"""How much of a step's time the host may take to enqueue layers of a batch before it launches the
next step, which the GPU then has in time."""
MOST_WAITING = 64
"""How many of the oldest prompts are asked how long they have waited."""


class _Begun(NamedTuple):
    scheduled: Scheduled
    batch: OverlappedBatch
    share: int


class Overlapped:
    """The batches of prompts under way beside the decode steps in ``room``, oldest first, until
    ``process`` is called with their results. Steps have a share of the GPU that suits
    ``targets``."""

    def __init__(
        self,
        room: Room,
        process: Callable[[Scheduled, StepResult], None],
        targets: Callable[[], Targets],
    ) -> None:
        self._room, self._process, self._targets = room, process, targets
        self._begun: deque[_Begun] = deque()

    def __len__(self) -> int:
        return len(self._begun)

    @property
    def is_full(self) -> bool:
        """True if no further batch may begin."""
        return len(self._begun) >= MOST

    @property
    def steps_share(self) -> int:
        """The multiprocessors that steps have beside the oldest batch; 0 if there is none."""
        return self._begun[0].share if self._begun else 0

    def share_of_steps(self, num_between: int) -> int:
        """The share beside the next batch; 0: prompts are rather computed between steps, up to
        ``num_between`` tokens at a time."""
        room, now = self._room, self._room.clock()
        oldest = room.prompts.oldest(MOST_WAITING)
        return room.shares.choose(
            [(now - each.received_at, room.prompts.num_left(each)) for each in oldest],
            self._targets(),
            num_ahead=sum(begun.scheduled.num_prompt_tokens for begun in self._begun),
            num_between=num_between,
        )

    def begin(self, scheduled: Scheduled, share: int) -> None:
        """Begin a batch behind those under way, beside steps with this ``share``."""
        batch = self._room.engine.overlapped(scheduled.batch, share)
        self._begun.append(_Begun(scheduled, batch, share))

    def advance(self, *, wait: bool) -> None:
        """Enqueue the next layers, and process the batches that are done. ``wait``: there is no
        step to launch meanwhile, so wait for the oldest."""
        for begun in self._begun:
            if not begun.batch.enqueued:
                begun.batch.enqueue(ENQUEUE_SHARE * self._room.shares.step_s)
                break
        while self._begun and (wait or self._begun[0].batch.done):
            scheduled, batch, _ = self._begun.popleft()
            result = batch.result()
            if batch.took_s is not None:
                self._room.shares.record_prompts(
                    batch.took_s, batch.num_multiprocessors, scheduled.num_prompt_tokens
                )
            self._process(scheduled, result)
            wait = False
