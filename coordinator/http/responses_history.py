"""The bodies of ``/v1/requests``, for ``/openapi.json``; what is sent is built by timeline.py."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.record.record import State
from transport.wire.sampling import FinishReason


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Stage(_Body):
    name: Literal["earlier attempts", "queue", "prefill", "handoff", "decode"]
    start_s: float = Field(description="Since the request was received.")
    duration_s: float = Field(description="So far, while it is open.")
    worker: str | None
    open: bool = Field(description="It has not ended.")
    parts: dict[str, float] = Field(description="Seconds, by the workers' clocks where known.")


class Failure(_Body):
    code: str
    message: str


class RequestTimeline(_Body):
    id: str
    object: Literal["request"]
    http_id: str = Field(description="The X-Request-Id of the HTTP request.")
    coordinator: str
    state: State
    attempts: int
    prefill_worker: str | None
    decode_worker: str | None
    prompt_tokens: int
    completion_tokens: int = Field(description="As of the last change of state.")
    bytes_moved: int = Field(description="By the handoffs of all attempts.")
    finish_reason: FinishReason | None
    failure: Failure | None
    received_at: float = Field(description="Unix seconds by the coordinator's clock.")
    ended_at: float | None
    answer_cut: bool = Field(
        description="It had ended; its client left or was cut off before it had the whole stream."
    )
    ttft_s: float | None
    duration_s: float = Field(description="So far, while it is open.")
    stages: list[Stage] = Field(description="Of the newest attempt, in their order.")


class RequestList(_Body):
    object: Literal["list"]
    data: list[RequestTimeline] = Field(description="The last one first.")
