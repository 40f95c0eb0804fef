"""What a worker logs about a request: one line when a stage is done, and one when it is dropped.
They are at DEBUG, since the coordinator logs how each request ended; failures are errors.

Every line carries the ids that the coordinator's lines carry (``telemetry.logs.request_fields``).
"""

import logging
from collections.abc import Iterable

from engine.sequence import Scheduled, Sequence
from transport.wire.messages import FailureCode, Prefilled, TokenOut, TransferDone

log = logging.getLogger(__name__)


def prefilled(sequence: Sequence, told: Prefilled) -> None:
    """The prompt is computed; ``finish`` is set when the first token was also the last."""
    fields = {"tokens": sequence.num_cached, "wait_s": told.wait_s, "prefill_s": told.prefill_s}
    _say(logging.DEBUG, "prefilled", sequence, fields | _finish(told.token))


def transferred(sequence: Sequence, told: TransferDone, exporter: str, *, verified: bool) -> None:
    """The cache was pulled from ``exporter``; ``verified``: its digest was compared."""
    fields = {"from": exporter, "bytes": told.num_bytes, "copy_s": told.copy_s}
    fields |= {"verified": True} if verified else {}
    _say(logging.DEBUG, "landed", sequence, fields)


def finished(scheduled: Scheduled, tokens: Iterable[TokenOut]) -> None:
    """Those of the step's sequences whose last token is among ``tokens``."""
    last = {(t.request_id, t.attempt): t for t in tokens if t.finish is not None}
    if not last:
        return
    for sequence in scheduled.sequences:
        if (token := last.get(sequence.key)) is not None:
            fields = {"output_len": sequence.num_output} | _finish(token)
            _say(logging.DEBUG, "decoded", sequence, fields)


def dropped(sequence: Sequence) -> None:
    """The coordinator cancelled the request."""
    _say(logging.DEBUG, "dropped", sequence, {"output_len": sequence.num_output})


def gave_up(sequence: Sequence, code: FailureCode, message: str, *, retry: bool) -> None:
    """This worker cannot do the request. Logged as an error where a computed value is wrong, or
    where no other worker will try it and the client is not the cause."""
    wrong = code in ("not_finite", "digest_mismatch")
    level = logging.DEBUG if code == "too_long" or (retry and not wrong) else logging.ERROR
    _say(level, "gave up", sequence, {"code": code, "why": message, "retry": retry})


def _finish(token: TokenOut) -> dict[str, object]:
    return {} if token.finish is None else {"finish": token.finish}


def _say(level: int, words: str, sequence: Sequence, fields: dict[str, object]) -> None:
    if log.isEnabledFor(level):
        log.log(level, words, extra={**sequence.log_fields, **fields})
