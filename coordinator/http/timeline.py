"""The record of a request as a timeline: queue → prefill → handoff → decode. Pure.

Each stage begins when the previous one ends, so the stages add up to the duration of the attempt,
by the coordinator's clock. The parts of a stage are durations by the workers' clocks, if they are
known. A request that ends in a stage has none of the later ones. A request without a handoff (its
first token was its last, or a colocated worker has it) has no stage of that name.
"""

from typing import Annotated, Literal

from msgspec import Meta, structs

from coordinator.http.response_schemas import Body
from coordinator.record.record import HANDOFF_PARTS, RequestRecord, State, stage_seconds
from transport.wire.messages import ReusedFrom
from transport.wire.sampling import FinishReason

StageName = Literal["earlier attempts", "queue", "prefill", "handoff", "decode"]


class Stage(Body, kw_only=True):
    name: StageName
    start_s: Annotated[float, Meta(description="Since the request was received.")]
    duration_s: Annotated[float, Meta(description="So far, while it is open.")]
    worker: str | None
    open: Annotated[bool, Meta(description="It has not ended.")]
    parts: Annotated[
        dict[str, float], Meta(description="Seconds, by the workers' clocks where known.")
    ]


class Failure(Body, kw_only=True):
    code: str
    message: str


class RequestTimeline(Body, kw_only=True):
    id: str
    object: Literal["request"] = "request"
    http_id: Annotated[str, Meta(description="The X-Request-Id of the HTTP request.")]
    coordinator: str
    state: State
    attempts: int
    prefill_worker: str | None
    decode_worker: str | None
    prompt_tokens: int
    completion_tokens: Annotated[
        int,
        Meta(
            description="So far; of another coordinator's request, as of the last change of state."
        ),
    ]
    bytes_moved: Annotated[int, Meta(description="By the handoffs and moves of all attempts.")]
    moves: Annotated[int, Meta(description="How often another worker went on decoding it.")]
    drafts_verified: Annotated[
        int, Meta(description="Tokens guessed for it that a decode step has verified.")
    ]
    drafts_accepted: Annotated[int, Meta(description="Those of them that were right.")]
    cached_tokens: Annotated[
        int, Meta(description="Tokens of the prompt that came from the prefix cache.")
    ]
    reused: Annotated[
        ReusedFrom,
        Meta(description="Where they were: the worker's own GPU or host memory, or a peer's."),
    ]
    finish_reason: FinishReason | None
    failure: Failure | None
    received_at: Annotated[float, Meta(description="Unix seconds by the coordinator's clock.")]
    ended_at: float | None
    answer_cut: Annotated[
        bool,
        Meta(
            description="It had ended; its client left or was cut off before it had the whole "
            "stream."
        ),
    ]
    ttft_s: float | None
    duration_s: Annotated[float, Meta(description="So far, while it is open.")]
    stages: Annotated[list[Stage], Meta(description="Of the newest attempt, in their order.")]


class RequestList(Body, kw_only=True):
    object: Literal["list"] = "list"
    data: Annotated[list[RequestTimeline], Meta(description="The last one first.")]


def timeline(record: RequestRecord, now: float, num_output: int | None = None) -> RequestTimeline:
    """The timeline of a record. ``now``: Unix seconds, for a request that has not ended.
    ``num_output``: its output tokens so far; None: those of the record. ``start_s`` counts from the
    moment at which the request was received."""
    ended_at = record.ended_at if record.ended and record.ended_at is not None else now
    received_at = _first(record.received_at, record.queued_at, ended_at)
    assert received_at is not None, "ended_at is not None"
    failure = Failure(code=record.failure_code, message=record.failure_message)
    return RequestTimeline(
        id=record.request_id,
        http_id=record.http_id,
        coordinator=record.coordinator,
        state=record.state,
        attempts=record.attempt,
        prefill_worker=record.prefill_worker or None,
        decode_worker=record.decode_worker or None,
        prompt_tokens=record.num_prompt,
        completion_tokens=record.num_output if num_output is None else num_output,
        bytes_moved=record.bytes_moved,
        moves=record.num_moves,
        drafts_verified=record.drafts_verified,
        drafts_accepted=record.drafts_accepted,
        cached_tokens=record.num_reused,
        reused=record.reused,
        finish_reason=record.finish_reason,
        failure=failure if record.failure_code else None,
        received_at=received_at,
        ended_at=record.ended_at,
        answer_cut=record.answer_cut,
        ttft_s=_since(received_at, record.first_token_at),
        duration_s=max(0.0, ended_at - received_at),
        stages=_stages(record, received_at, ended_at),
    )


def _stages(record: RequestRecord, received_at: float, ended_at: float) -> list[Stage]:
    begun = [(name, at) for name, at in _beginnings(record, received_at) if at is not None]
    ends = [at for _, at in begun[1:]] + [ended_at]
    parts = {"prefill": _prefill_parts(record), "handoff": _handoff_parts(record)}
    worker = {"prefill": record.prefill_worker, "decode": record.decode_worker}
    worker["handoff"] = worker["decode"]
    return [
        Stage(
            name=name,
            start_s=max(0.0, at - received_at),
            duration_s=max(0.0, end - at),
            worker=worker.get(name) or None,
            open=not record.ended and i == len(begun) - 1,
            parts=parts.get(name, {}),
        )
        for i, ((name, at), end) in enumerate(zip(begun, ends, strict=True))
    ]


def _beginnings(record: RequestRecord, received_at: float) -> list[tuple[StageName, float | None]]:
    """When each stage began, in their order; None: it did not."""
    again = record.attempt > 1
    placed_at, prefilled_at = record.placed_at, record.prefilled_at
    prefill_at = None if placed_at is None else placed_at + (record.prefill_wait_s or 0.0)
    moved = record.handoff_placed_at is not None or record.state == "handoff"
    one_worker = bool(record.decode_worker) and record.decode_worker == record.prefill_worker
    decode_at = (
        prefilled_at if one_worker else _first(record.first_decode_at, record.transferred_at)
    )
    return [
        ("earlier attempts", received_at if again else None),
        ("queue", record.queued_at if again else received_at),
        ("prefill", prefill_at),
        ("handoff", prefilled_at if moved and not one_worker else None),
        ("decode", decode_at),
    ]


def _prefill_parts(record: RequestRecord) -> dict[str, float]:
    return {} if record.prefill_s is None else {"compute": record.prefill_s}


def _handoff_parts(record: RequestRecord) -> dict[str, float]:
    found = stage_seconds(structs.asdict(record))
    return {name: found[name] for name in HANDOFF_PARTS if name in found}


def _first(*times: float | None) -> float | None:
    return next((at for at in times if at is not None), None)


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else max(0.0, end - start)
