"""The body of a response, as OpenAI's Responses API has it, and the items of its output.

A field that is UNSET is left out.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from coordinator.http.response_schemas import Body, TokenLogprob
from coordinator.http.responses.request import (
    ReasoningSettings,
    ResponseTool,
    ResponseToolChoice,
    TextSettings,
)

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ErrorCode = Literal["server_error", "invalid_prompt", "rate_limit_exceeded"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, tag_field="type", tag="output_text", kw_only=True):
    """``logprobs`` are those of the tokens of ``text``; empty unless asked for."""

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
    """``arguments`` is a JSON object as text; cut off where the status is ``incomplete``."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class ReasoningItem(Struct, tag_field="type", tag="reasoning", kw_only=True):
    """The thought: in ``summary`` where the request asks for a summary, else in ``content``."""

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
    """``code`` is one of OpenAI's, ``type`` this server's own."""

    code: ErrorCode
    message: str
    type: str | None


class IncompleteDetails(Body, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseBody(Body, kw_only=True):
    """``store``: whether the response can be found by its id."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: Literal[False] = False
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
