"""The body of a response of OpenAI's Responses API, and the items of its output.

A field that is UNSET is left out.
"""

import time
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from coordinator.http.chat_schemas import TextFormat
from coordinator.http.response_schemas import Body, TokenLogprob
from coordinator.http.responses.request import (
    ReasoningSettings,
    ResponseRequest,
    TextSettings,
)
from coordinator.http.responses.tools import ResponseTool, ResponseToolChoice
from transport.wire.sampling import SamplingParams

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ErrorCode = Literal["server_error", "invalid_prompt", "rate_limit_exceeded"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Struct, tag_field="type", tag="output_text", kw_only=True):
    """A piece of the answer. ``logprobs``: those of the tokens of ``text``; empty unless
    requested."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(Struct, tag_field="type", tag="reasoning_text", kw_only=True):
    text: str


class SummaryText(Struct, tag_field="type", tag="summary_text", kw_only=True):
    text: str


class OutputMessage(Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class FunctionCallItem(Struct, tag_field="type", tag="function_call", kw_only=True):
    """A call. ``arguments`` is a JSON object as text; cut off if the status is ``incomplete``.
    ``namespace``: that of the function, if it has one."""

    id: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str
    status: ItemStatus


class ReasoningItem(Struct, tag_field="type", tag="reasoning", kw_only=True):
    """The thought: in ``summary`` if the request asks for a summary, else in ``content``."""

    id: str
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: None = None
    status: ItemStatus


OutputItem = OutputMessage | FunctionCallItem | ReasoningItem


class InputDetails(Body, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(Body, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(Body, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Body, kw_only=True):
    """An error; ``code`` is one of OpenAI's, ``type`` this server's own."""

    code: ErrorCode
    message: str
    type: str | None


class IncompleteDetails(Body, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseBody(Body, kw_only=True):
    """A response; ``store``: it can be found by its id."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


class DeletedResponse(Body, kw_only=True):
    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: Literal[True] = True


def body_of(
    request: ResponseRequest, sampling: SamplingParams, response_id: str, model: str
) -> ResponseBody:
    """The body of a response in progress, with the defaults of the fields that the request
    lacks."""
    text = request.text or TextSettings()
    return ResponseBody(
        id=response_id,
        created_at=int(time.time()),
        status="in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=request.reasoning or ReasoningSettings(),
        safety_identifier=request.safety_identifier,
        store=request.is_stored,
        temperature=sampling.temperature,
        text=TextSettings(format=text.format or TextFormat(), verbosity=text.verbosity),
        tool_choice=request.tool_choice or "auto",
        tools=[tool for tool in request.tools or () if not tool.is_hosted],
        top_logprobs=request.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )
