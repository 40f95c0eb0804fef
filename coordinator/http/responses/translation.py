"""Translates a request for a response to a chat. Pure."""

from functools import partial

import msgspec

from coordinator.http.chat_schemas import (
    ChatMessage,
    JsonSchema,
    JsonSchemaFormat,
    ResponseFormat,
)
from coordinator.http.errors import fields_renamed
from coordinator.http.request_schemas import ChatRequest
from coordinator.http.responses.functions import chat_tools
from coordinator.http.responses.request import ResponseJsonSchema, ResponseRequest
from coordinator.http.sampling_fields import SamplingFields

_NO_MESSAGES = [ChatMessage(role="user", content="")]
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
}
"""Fields of a chat and their names in a request for a response."""
client_field_names = partial(fields_renamed, _NAMES, max_tokens="max_output_tokens")


def chat_request(
    request: ResponseRequest, messages: list[ChatMessage] | None = None
) -> ChatRequest:
    """The chat of ``messages``; without them, the chat whose prompt is already tokenized. Raises
    FieldError."""
    tools, choice = chat_tools(request.tools or (), request.tool_choice)
    effort = request.reasoning.effort if request.reasoning else None
    sampling = {name: getattr(request, name) for name in SamplingFields.__struct_fields__}
    return ChatRequest(
        messages=messages or _NO_MESSAGES,
        model=request.model,
        stream=request.stream,
        max_completion_tokens=request.max_output_tokens,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(request),
        structured_outputs=request.structured_outputs,
        reasoning_effort=effort,
        thinking_token_budget=request.thinking_token_budget,
        chat_template_kwargs=request.chat_template_kwargs,
        cache_salt=request.cache_salt,
        priority=request.priority,
        logprobs=request.includes_logprobs,
        top_logprobs=request.top_logprobs,
        **sampling,
    )


def _format(request: ResponseRequest) -> ResponseFormat | None:
    form = request.text.format if request.text else None
    if not isinstance(form, ResponseJsonSchema):
        return form
    return JsonSchemaFormat(json_schema=msgspec.convert(msgspec.to_builtins(form), JsonSchema))
