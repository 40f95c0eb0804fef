"""Schedules, launches and processes a worker's batches of prompts."""

from collections.abc import Callable

from decode.scheduler import DecodeScheduler
from engine.batch import StepResult
from engine.runner import Engine
from engine.sequence import Scheduled, Sequence
from prefill.offers import Offers
from prefill.scheduler import PrefillScheduler
from transport.wire.offers import Offer
from worker.launches import Launches
from worker.prefixes import Prefixes
from worker.reports import Reports


class PromptBatches:
    """Launches the batches of ``prompts``. A finished prompt is offered to decode workers (its
    offer is ``offer_of``), or is decoded here, in ``sequences``."""

    def __init__(
        self,
        engine: Engine,
        prompts: PrefillScheduler,
        sequences: DecodeScheduler,
        offers: Offers,
        offer_of: Callable[[Sequence], Offer],
        prefixes: Prefixes,
        reports: Reports,
        launches: Launches,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._sequences = sequences
        self._offers = offers
        self._offer_of = offer_of
        self._prefixes = prefixes
        self._reports = reports
        self._launches = launches
        self._clock = clock

    def launch(self, max_tokens: int | None) -> bool:
        """Launch the next batch, within the limits and ``max_tokens``; returns True if there was
        one."""
        scheduled = self._prompts.schedule(max_tokens)
        if scheduled is None:
            return False
        for sequence in scheduled.sequences:
            if not sequence.begun:
                sequence.begun, sequence.started_at = True, self._clock()
                self._engine.bind(sequence.binding())
                self._prefixes.begin(sequence)
        self._launches.add(scheduled, self._engine.launch(scheduled.batch), self._process)
        for sequence, row in zip(scheduled.sequences, scheduled.rows, strict=True):
            goes_on = sequence.num_output + 1 < sequence.stop.max_tokens
            if row.sample and sequence.hands_off and goes_on:
                self._reports.last_chunk(sequence)
        return True

    def _process(self, scheduled: Scheduled, result: StepResult) -> None:
        for sequence in self._reports.prompt_logprobs(scheduled, result):
            self._prompts.end(sequence)
            self._reports.sampling_failed(sequence, "")
        for sequence, sampled in self._prompts.retire(scheduled, result):
            if sampled.token_id is None:
                if not sampled.error:
                    self._prompts.invalidate_prefixes(sequence)
                self._prompts.end(sequence)
                self._reports.sampling_failed(sequence, sampled.error)
                continue
            token = sequence.append(sampled)
            hands_off = sequence.hands_off and token.finish is None
            offer = self._offer_of(sequence) if hands_off else None
            self._reports.prefilled(sequence, token, offer, self._clock())
            if token.finish is not None:
                self._prompts.end(sequence)
            elif offer is not None:
                self._offers.add(sequence, self._clock())
            else:
                self._sequences.add(sequence)
