"""The record of a request for Redis, and its line in the log."""

import logging

from msgspec import structs

from coordinator.core.request import Request, State
from coordinator.record.record import RequestRecord

log = logging.getLogger(__name__)


def log_end(request: Request, reason: str) -> None:
    """Log the end of an accepted request: one line at INFO, or a warning if it failed."""
    stages = request.stages
    fields: dict[str, object] = {
        "state": request.state.value,
        "reason": reason,
        "prompt_len": len(request.spec.prompt_ids),
        "output_len": len(request.output_ids),
        "prefill": request.prefill_worker,
        "decode": request.decode_worker,
        "took_s": stages["ended_at"] - stages["received_at"],
    }
    if "first_token_at" in stages:
        fields["ttft_s"] = stages["first_token_at"] - stages["received_at"]
    if request.num_reused:
        fields["cached_len"] = request.num_reused
    if request.spec.key:
        fields["key"] = request.spec.key
    failed = request.state is State.FAILED
    if failed:
        fields["why"] = request.message
    level = logging.WARNING if failed else logging.INFO
    log.log(level, "ended", extra=request.log_fields | fields)


def to_record(request: Request, coordinator: str) -> RequestRecord:
    """The record of the request that Redis keeps."""
    record = RequestRecord(
        request_id=request.request_id,
        coordinator=coordinator,
        http_id=request.spec.http_id,
        state=request.state.value,
        attempt=request.attempt,
        revision=request.revision,
        prefill_worker=request.prefill_worker,
        decode_worker=request.decode_worker,
        num_prompt=len(request.spec.prompt_ids),
        num_output=len(request.output_ids),
        bytes_moved=request.bytes_moved,
        handoff_bytes=request.handoff_bytes,
        num_moves=request.num_moves,
        drafts_verified=request.drafts_verified,
        drafts_accepted=request.drafts_accepted,
        num_reused=request.num_reused,
        reused=request.reused,
        finish_reason=request.finish_reason,
        failure_code=request.code,
        failure_message=request.message,
    )
    return structs.replace(record, **request.stages)
