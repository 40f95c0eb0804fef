"""Reports a worker's sequences to the coordinator, and logs them.

One line is logged when a stage is done, and one when a sequence is dropped.

The lines are at DEBUG, since the coordinator logs how each request ended; failures are errors.
Every line carries the ids that the coordinator's lines carry (``telemetry.logs.request_fields``).
"""

import logging
from collections.abc import Callable

from engine.batch import StepResult
from engine.sequence import Scheduled, Sequence
from transport.wire.messages import (
    Failed,
    FailureCode,
    FromWorker,
    LastChunk,
    Prefilled,
    Settled,
    TokenOut,
    Tokens,
    TransferDone,
)
from transport.wire.offers import Offer
from transport.wire.prompt_logprobs import PromptLogprobs, row_bytes
from transport.wire.reports import FirstStep

log = logging.getLogger(__name__)

ROWS_A_MESSAGE = 8192
"""The most rows of prompt log-probabilities in one message: 1.4 MB with 20 alternatives. A frame
that is too large would close the connection (transport/wire/channel.py)."""

_CLIENTS = frozenset({"too_long", "constraint_failed"})
"""Failures that the request itself causes."""


class Reports:
    """Reports about sequences; ``send`` sends the coordinator a message."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        self._send = send

    def prompt_logprobs(self, scheduled: Scheduled, result: StepResult) -> list[Sequence]:
        """Report the prompt log-probabilities that a batch computed; returns the sequences whose
        logits were not finite."""
        broken = []
        for index, rows in result.scored.items():
            sequence, row = scheduled.sequences[index], scheduled.rows[index]
            assert row.scoring is not None, "scored without being asked"
            if sequence.ended:
                continue
            if rows is None:
                broken.append(sequence)
                continue
            start, size = row.start + row.scoring.first + 1, row_bytes(row.scoring.num_top)
            for at in range(0, len(rows), ROWS_A_MESSAGE * size):
                some = rows[at : at + ROWS_A_MESSAGE * size]
                self._send(PromptLogprobs(*sequence.key, start + at // size, some))
        return broken

    def last_chunk(self, sequence: Sequence) -> None:
        """Report that the last chunk of a prompt was launched."""
        self._send(LastChunk(*sequence.key))

    def prefilled(
        self, sequence: Sequence, token: TokenOut, offer: Offer | None, now: float
    ) -> None:
        """Report a computed prompt and its first token; ``token.finish`` is set if that is the last
        token too."""
        wait_s, prefill_s = sequence.started_at - sequence.received_at, now - sequence.started_at
        begun = sequence.beginning
        self._send(Prefilled(token, offer, wait_s, prefill_s, begun.num_tokens, begun.reused))
        fields = {"tokens": sequence.num_cached, "wait_s": wait_s, "prefill_s": prefill_s}
        if begun.num_tokens:
            fields |= {"reused": begun.num_tokens}
        _log(logging.DEBUG, "prefilled", sequence, fields | _finish(token))

    def settled(self, sequence: Sequence, offer: Offer) -> None:
        """Report that a sequence is decoded no further, and offered to another worker."""
        self._send(Settled(*sequence.key, offer))
        _log(logging.DEBUG, "settled", sequence, {"tokens": sequence.num_cached})

    def transferred(
        self, sequence: Sequence, done: TransferDone, exporter: str, *, verified: bool
    ) -> None:
        """Report that a cache was pulled from ``exporter``; ``verified``: its digest was
        compared."""
        self._send(done)
        fields = {"from": exporter, "bytes": done.num_bytes, "copy_s": done.copy_s}
        fields |= {"verified": True} if verified else {}
        _log(logging.DEBUG, "landed", sequence, fields)

    def tokens(
        self, scheduled: Scheduled, tokens: list[TokenOut], first_steps: tuple[FirstStep, ...]
    ) -> None:
        """Report a decode step's tokens, and log the sequences that they finish."""
        if tokens:
            self._send(Tokens(tuple(tokens), first_steps))
        last = {(t.request_id, t.attempt): t for t in tokens if t.finish is not None}
        for sequence in scheduled.sequences if last else ():
            if (token := last.get(sequence.key)) is not None:
                fields = {"output_len": sequence.num_output} | _finish(token)
                _log(logging.DEBUG, "decoded", sequence, fields)

    def dropped(self, sequence: Sequence) -> None:
        """Log a sequence that the coordinator cancelled; nothing is sent."""
        _log(logging.DEBUG, "dropped", sequence, {"output_len": sequence.num_output})

    def failed(
        self, sequence: Sequence, code: FailureCode, message: str, retry: bool = True
    ) -> None:
        """Report a request that this worker cannot serve. Logged as an error if a computed value is
        wrong, or if the request is not retried and the client is not the cause."""
        pulled = sequence.pulled if code == "not_finite" else None
        self._send(Failed(*sequence.key, code, message, retry, pulled))
        wrong = code in ("not_finite", "digest_mismatch")
        level = logging.DEBUG if code in _CLIENTS or (retry and not wrong) else logging.ERROR
        _log(level, "gave up", sequence, {"code": code, "why": message, "retry": retry})

    def sampling_failed(self, sequence: Sequence, error: str) -> None:
        """Report that no token could be sampled. ``error`` is the grammar's; "": the logits were
        not finite."""
        if error:
            self.failed(sequence, "constraint_failed", error, retry=False)
        else:
            self.failed(sequence, "not_finite", "the logits were not finite")


def _finish(token: TokenOut) -> dict[str, object]:
    return {} if token.finish is None else {"finish": token.finish}


def _log(level: int, words: str, sequence: Sequence, fields: dict[str, object]) -> None:
    if log.isEnabledFor(level):
        log.log(level, words, extra={**sequence.log_fields, **fields})
