"""A worker's batches of prompts: scheduled, launched and processed."""

from engine.batch import StepResult
from engine.sequence import Scheduled, Sequence
from transport.wire.offers import Offer
from worker.handoff import offer_of
from worker.launches import Launches
from worker.room import Room


class PromptBatches:
    """The batches of the prompts in ``room``. A finished prompt is offered to decode workers, or is
    decoded here. ``launches`` has the launched batches until they are processed."""

    def __init__(self, room: Room, launches: Launches) -> None:
        self._room = room
        self._launches = launches

    def schedule(self) -> Scheduled | None:
        """The next batch; None if there is none. Prompts whose prefix was copied take part from now
        on, and those whose copy took too long fail."""
        room = self._room
        for sequence, problem in room.prompts.pulled():
            room.reports.failed(sequence, "pull_timeout", problem)
        num_waiting = sum(not prompt.compiling for prompt in room.prompts.sequences())
        max_tokens = room.settings.limits.max_tokens(
            num_running=len(room.sequences.running), num_waiting=num_waiting
        )
        return room.prompts.schedule(max_tokens)

    def launch(self, scheduled: Scheduled) -> None:
        """Launch a batch, and report the prompts whose last chunk it has."""
        room = self._room
        room.begin(scheduled)
        self._launches.add(scheduled, room.engine.launch(scheduled.batch), self._process)
        for sequence, row in zip(scheduled.sequences, scheduled.rows, strict=True):
            goes_on = sequence.num_output + 1 < sequence.stop.max_tokens
            if row.sample and sequence.hands_off and goes_on:
                room.reports.last_chunk(sequence)

    def _process(self, scheduled: Scheduled, result: StepResult) -> None:
        """Report the prompts that a batch has finished, and pass them on."""
        room = self._room
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
            offer = self._offer_of(sequence) if hands_off else None
            room.reports.prefilled(sequence, token, offer, room.clock())
            if token.finish is not None:
                room.prompts.end(sequence)
            elif offer is not None:
                room.offers.add(sequence, room.clock())
            else:
                room.sequences.add(sequence)

    def _offer_of(self, sequence: Sequence) -> Offer:
        settings, cache = self._room.settings, self._room.engine.cache
        return offer_of(settings.instance, cache, sequence, verified=settings.handoff.verify)
