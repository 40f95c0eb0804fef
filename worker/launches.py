"""The batches that the engine computes: the queue that all wait in, and the batches of prompts.

A spread step may abort (decode/lockstep.py): then it and the spread steps launched behind it are
taken back, and the sequences take their next step from where they were. Batches of prompts behind
it are computed all the same, since they touch no running sequence.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from engine.batch import StepResult
from engine.sequence import Scheduled
from engine.step import Step
from transport.wire.messages import Targets
from transport.wire.reports import MANY_TOKENS, PromptCounts
from worker.handoff import offer_of
from worker.overlapped import Overlapped
from worker.room import Room

SHORT_S = 0.028
"""The others of a spread group rather wait for prompts that end so soon than take another local
step: one of these is under way for half of this time (tests/simulation/test_timed.py)."""

Process = Callable[[Scheduled, StepResult], None]


@dataclass(frozen=True)
class _Launch:
    """One launched batch, and what is called with its result."""

    scheduled: Scheduled
    step: Step
    process: Process
    spread: bool
    launched_at: float


class Launches:
    """The launched batches of one worker, oldest first, until their results are processed.

    After a spread step has aborted, ``aborted`` is called with the ranks of the members that did
    not take part in time. Then ``take_back`` undoes the scheduling of each step that was not
    computed.

    While a result is processed, ``took_s`` is the time that its batch took: on the device, or if
    that still makes the next drafts, since the host began to launch it or saw the batch before it
    done. ``took_on`` multiprocessors computed it.
    """

    def __init__(
        self,
        take_back: Callable[[Scheduled], None],
        aborted: Callable[[tuple[int, ...]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.took_s, self.took_on = 0.0, 1
        self._take_back = take_back
        self._aborted = aborted
        self._launched: deque[_Launch] = deque()
        self._num_spread = 0
        self._clock = clock
        self._done_at = -inf

    def __len__(self) -> int:
        return len(self._launched)

    @property
    def any_spread(self) -> bool:
        """True if a spread step has not been processed yet."""
        return self._num_spread > 0

    @property
    def is_computing(self) -> bool:
        """True if the oldest batch is not done yet."""
        return bool(self._launched) and not self._launched[0].step.is_done

    def left_s(self, scheduled: Scheduled, expected_s: float) -> float:
        """How long the device still computes a batch that takes ``expected_s``."""
        if not self._launched or self._launched[0].scheduled is not scheduled:
            return expected_s
        if not self.is_computing:
            return 0.0
        return expected_s - (self._clock() - max(self._launched[0].launched_at, self._done_at))

    def launch(
        self,
        scheduled: Scheduled,
        enqueue: Callable[[], Step],
        process: Process,
        *,
        spread: bool = False,
    ) -> None:
        """Launch a batch by ``enqueue``, which takes the host some 25 ms for prompts without a
        graph, while the device computes. ``process`` is called with the result."""
        began_at = self._clock()
        step = enqueue()
        self._num_spread += spread
        self._launched.append(_Launch(scheduled, step, process, spread, began_at))

    def process_done(self) -> None:
        """Process the results of batches that are done, without waiting, where no spread step is
        under way."""
        while not self.any_spread and self._launched and not self.is_computing:
            self.process(behind=len(self) - 1)

    def process(self, *, behind: int) -> bool:
        """Wait for the oldest batches and process their results, until at most ``behind`` are under
        way. Returns True if steps were taken back; then no batch is under way."""
        aborted: list[Scheduled] = []
        late: tuple[int, ...] = ()
        while len(self._launched) > (0 if aborted else behind):
            launch = self._launched.popleft()
            result = launch.step.result()
            self._num_spread -= launch.spread
            began_at, now = max(launch.launched_at, self._done_at), self._clock()
            on_device_s = launch.step.took_s
            self.took_s = now - began_at if on_device_s is None else on_device_s
            self.took_on = launch.step.num_multiprocessors
            self._done_at = min(now, began_at + self.took_s)  # unseen, while the host launched
            if result.aborted:
                late = late or result.late
                aborted.append(launch.scheduled)
            else:
                assert not (aborted and launch.spread), "computed behind an aborted step"
                launch.process(launch.scheduled, result)
        if aborted:
            self._aborted(late)
        for scheduled in aborted:
            self._take_back(scheduled)
        return bool(aborted)


class PromptBatches:
    """The batches of the prompts in ``room``. A finished prompt is offered to decode workers, or is
    decoded here. A batch is one of ``launches`` until it is processed, or is ``overlapped``: those
    with long prompts are, while there are decode steps. ``targets``: what steps and prompts shall
    keep then. ``counts``: the batches of many tokens that were not overlapped."""

    def __init__(self, room: Room, launches: Launches, targets: Callable[[], Targets]) -> None:
        self.counts = PromptCounts()
        self._room, self._launches = room, launches
        self.overlapped = Overlapped(room, self._process, targets)
        self._steps_share = 0
        self._under_way: list[Scheduled] = []
        self._timed: dict[int, tuple[int, float]] = {}
        """The tokens of the last batch of about so many, and how long it took, by their number of
        bits."""

    @property
    def ends_soon(self) -> bool:
        """True if the launched batches end within ``SHORT_S``, by earlier ones; those of a new size
        do not."""
        return not self.overlapped and sum(map(self._left_s, self._under_way)) <= SHORT_S

    @property
    def takes_little(self) -> bool:
        """True if all prompts that wait would be computed within ``SHORT_S``, by earlier ones."""
        prompts = self._room.prompts
        return self._expected_s(sum(map(prompts.num_left, prompts.sequences()))) <= SHORT_S

    def schedule(self) -> Scheduled | None:
        """The next batch; None if there is none. Prompts whose prefix was copied take part from now
        on, and those whose copy took too long fail."""
        room = self._room
        for sequence, problem in room.prompts.pulled():
            room.reports.failed(sequence, "pull_timeout", problem)
        num_running = len(room.sequences.running)
        num_waiting = sum(not prompt.compiling for prompt in room.prompts.sequences())
        if self.overlapped.is_full:
            return None
        limits = room.settings.limits
        max_tokens = limits.max_tokens(num_running=num_running, num_waiting=num_waiting)
        self._steps_share = 0
        if self._has_long and limits.overlaps(num_running=num_running, num_waiting=num_waiting):
            self._steps_share = self.overlapped.share_of_steps(max_tokens)
        if self._steps_share:
            max_tokens = limits.prompts.max_batch_tokens
        elif self.overlapped:
            return None  # a batch that is not overlapped has the whole GPU
        return room.prompts.schedule(max_tokens)

    def launch(self, scheduled: Scheduled) -> None:
        """Launch a batch, and report the prompts whose last chunk it has."""
        room, is_scored = self._room, any(row.scoring is not None for row in scheduled.rows)
        while self.overlapped and is_scored:
            self.overlapped.advance(wait=True)
        room.bind_new(scheduled)
        self._under_way.append(scheduled)
        if self._steps_share and not is_scored:
            self.overlapped.begin(scheduled, self._steps_share)
        else:
            enqueue = partial(room.engine.launch, scheduled.batch)
            self._launches.launch(scheduled, enqueue, self._process_timed)
        for sequence, row in zip(scheduled.sequences, scheduled.rows, strict=True):
            goes_on = sequence.num_output + 1 < sequence.stop.max_tokens
            if row.sample and sequence.hands_off and goes_on:
                room.reports.last_chunk(sequence)

    @property
    def _has_long(self) -> bool:
        """True if the next batch may have a prompt that is long enough to be computed beside
        steps, where the engine can do that, or such a batch is under way."""
        room, limits = self._room, self._room.settings.limits
        if self.overlapped:
            return True
        if room.engine.overlap is None:
            return False
        oldest = room.prompts.oldest(limits.prompts.max_batch_rows)
        return any(room.prompts.num_left(each) > limits.max_tokens_beside_decode for each in oldest)

    def _left_s(self, scheduled: Scheduled) -> float:
        return self._launches.left_s(scheduled, self._expected_s(scheduled.num_prompt_tokens))

    def _expected_s(self, num_tokens: int) -> float:
        """How long a batch takes: as long as the last one of about as many tokens, longer with
        more."""
        before, took_s = self._timed.get(num_tokens.bit_length(), (num_tokens, inf))
        return took_s * max(1.0, num_tokens / before)

    def _process_timed(self, scheduled: Scheduled, result: StepResult) -> None:
        num_tokens = scheduled.num_prompt_tokens
        took_s = self._launches.took_s
        self._timed[num_tokens.bit_length()] = num_tokens, took_s
        self._room.shares.record_prompts(took_s, self._launches.took_on, num_tokens)
        if num_tokens >= MANY_TOKENS:
            before = self.counts
            self.counts = PromptCounts(before.num_tokens + num_tokens, before.seconds + took_s)
        self._process(scheduled, result)

    def _process(self, scheduled: Scheduled, result: StepResult) -> None:
        """Report the prompts that a batch has finished, and pass them on."""
        room = self._room
        self._under_way.remove(scheduled)
        for sequence in room.reports.prompt_logprobs(scheduled, result):
            room.prompts.end(sequence)
            room.reports.sampling_failed(sequence, "")
        for sequence, sampled in room.prompts.retire(scheduled, result):
            if sampled.token_id is None:
                if not sampled.error:
                    room.prompts.invalidate_prefixes(sequence)
                room.prompts.end(sequence)
                room.reports.sampling_failed(sequence, sampled.error)
                continue
            token = sequence.append(sampled)
            hands_off = sequence.hands_off and token.finish is None
            offer = offer_of(room, sequence) if hands_off else None
            room.reports.prefilled(sequence, token, offer, room.clock())
            if token.finish is not None:
                room.prompts.end(sequence)
            elif offer is not None:
                room.offers.add(sequence, room.clock())
            else:
                room.sequences.add(sequence)
