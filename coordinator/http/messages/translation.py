"""From a Messages request to the chat that it asks for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from coordinator.http.chat_schemas import (
    CalledFunction,
    CalledTool,
    ChatMessage,
    FunctionName,
    FunctionSpec,
    JsonSchema,
    JsonSchemaFormat,
    NamedTool,
    TextPart,
    Tool,
)
from coordinator.http.errors import ApiError
from coordinator.http.messages.blocks import (
    Block,
    MessageParam,
    ThinkingParam,
    ToolResultParam,
    ToolUseParam,
    joined,
)
from coordinator.http.messages.choices import (
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoiceAny,
    ToolChoiceAuto,
    ToolChoiceNone,
    ToolChoiceTool,
    ToolParam,
)
from coordinator.http.messages.requests import CountTokensRequest, MessagesRequest
from coordinator.http.request_schemas import ChatRequest

_GIVEN_AS = {
    "response_format.json_schema.schema": "output_config.format.schema",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
}
"""What a field of a chat is called in a Messages request."""
_BILLING = "x-anthropic-billing-header:"


def chat_of(request: CountTokensRequest) -> ChatRequest:
    """The chat with the same prompt, and with the same answer where ``request`` asks for one."""
    return ChatRequest(
        model=request.model,
        messages=[*_system(request), *_messages(request.messages)],
        chat_template_kwargs=request.chat_template_kwargs,
        continue_final_message=request.continues or None,
        tools=[_tool(tool) for tool in request.tools or ()],
        **_tool_choice(request),
        **_thinking(request),
        **(_generation(request) if isinstance(request, MessagesRequest) else {}),
    )


@contextmanager
def fields_as_given() -> Iterator[None]:
    """Errors about fields of a chat name those of the Messages request."""
    try:
        yield
    except ApiError as error:
        if (given := _GIVEN_AS.get(param := error.param or "")) is None:
            raise
        message = str(error).replace(f"{param}:", f"{given}:", 1)
        raise ApiError(
            error.status, message, param=given, code=error.code, headers=error.headers
        ) from None


def _system(request: CountTokensRequest) -> Iterator[ChatMessage]:
    content = request.system or ()
    if not isinstance(content, str):
        # Claude Code's first block is for Anthropic's billing, not for the model, and differs in
        # every request, so that no two prompts would begin alike.
        content = [part for part in content if not part.text.startswith(_BILLING)]
    if text := joined(content):
        yield ChatMessage(role="system", content=text)


def _messages(messages: list[MessageParam]) -> Iterator[ChatMessage]:
    for message in messages:
        match message.role:
            case "user":
                yield from _from_user(message)
            case "assistant":
                yield _from_assistant(message)
            case "system":
                yield ChatMessage(role="system", content=_text(message.blocks))


def _from_user(message: MessageParam) -> Iterator[ChatMessage]:
    """Each result is a message of its own; the texts between two results are one."""
    texts: list[Block] = []
    for block in message.blocks:
        if isinstance(block, ToolResultParam):
            if texts:
                yield ChatMessage(role="user", content=_text(texts))
                texts = []
            yield ChatMessage(role="tool", content=block.text, tool_call_id=block.tool_use_id)
        else:
            texts.append(block)
    if texts or not message.blocks:
        yield ChatMessage(role="user", content=_text(texts))


def _from_assistant(message: MessageParam) -> ChatMessage:
    thoughts = [block.thinking for block in message.blocks if isinstance(block, ThinkingParam)]
    calls = [_call(block) for block in message.blocks if isinstance(block, ToolUseParam)]
    return ChatMessage(
        role="assistant",
        content=_text(message.blocks),
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _text(blocks: Sequence[Block]) -> str:
    return joined(block for block in blocks if isinstance(block, TextPart))


def _call(block: ToolUseParam) -> CalledTool:
    arguments = msgspec.json.encode(block.input).decode()
    function = CalledFunction(name=block.name, arguments=arguments)
    return CalledTool(id=block.id, function=function)


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
            return {"tool_choice": NamedTool(function=FunctionName(name=name))}
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
        "response_format": form
        and JsonSchemaFormat(json_schema=JsonSchema(schema_=form.schema_, strict=True)),
    }
