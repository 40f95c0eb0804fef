"""Translates a Messages request to a chat."""

from functools import partial
from typing import Any

from coordinator.http.chat_schemas import (
    FunctionSpec,
    JsonSchema,
    JsonSchemaFormat,
    Tool,
    ToolChoice,
)
from coordinator.http.errors import fields_renamed
from coordinator.http.messages.choices import (
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoiceAny,
    ToolChoiceAuto,
    ToolChoiceNone,
    ToolChoiceTool,
    ToolParam,
)
from coordinator.http.messages.conversation import conversation
from coordinator.http.messages.requests import CountTokensRequest, MessagesRequest
from coordinator.http.request_schemas import ChatRequest

_NAMES = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
}
"""Fields of a chat and their names in a Messages request."""
client_field_names = partial(fields_renamed, _NAMES)


def chat_of(request: CountTokensRequest) -> ChatRequest:
    """The chat with the same prompt, and with the same answer if ``request`` asks for one."""
    return ChatRequest(
        model=request.model,
        messages=list(conversation(request.system, request.messages)),
        chat_template_kwargs=request.chat_template_kwargs,
        continue_final_message=request.continues or None,
        tools=[_tool(tool) for tool in request.tools or ()],
        **_tool_choice(request),
        **_thinking(request),
        **(_generation(request) if isinstance(request, MessagesRequest) else {}),
    )


def _tool(tool: ToolParam) -> Tool:
    return Tool(
        function=FunctionSpec(
            name=tool.name,
            description=tool.description,
            parameters=tool.input_schema,
            strict=tool.strict,
        )
    )


def _tool_choice(request: CountTokensRequest) -> dict[str, Any]:
    match request.tool_choice:
        case None:
            return {}
        case ToolChoiceNone():
            return {"tool_choice": "none"}
        case ToolChoiceTool(name=name):
            return {"tool_choice": ToolChoice.of(name)}
        case ToolChoiceAuto() | ToolChoiceAny() as choice:
            return {
                "tool_choice": "required" if isinstance(choice, ToolChoiceAny) else "auto",
                "parallel_tool_calls": not choice.disable_parallel_tool_use,
            }


def _thinking(request: CountTokensRequest) -> dict[str, Any]:
    thinking = request.thinking
    if thinking is None:
        return {}
    if isinstance(thinking, ThinkingDisabled):
        return {"reasoning_effort": "none"}
    shown = {"reasoning_effort": "medium", "include_reasoning": thinking.display != "omitted"}
    if isinstance(thinking, ThinkingEnabled):
        return shown | {"thinking_token_budget": thinking.budget_tokens}
    return shown


def _generation(request: MessagesRequest) -> dict[str, Any]:
    form = request.form
    return {
        "stream": request.stream,
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences or None,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "cache_salt": request.cache_salt,
        "response_format": form
        and JsonSchemaFormat(json_schema=JsonSchema(schema_=form.schema_, strict=True)),
    }
