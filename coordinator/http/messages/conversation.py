"""From the system prompt and the messages of a Messages request to the messages of a chat."""

from collections.abc import Iterator, Sequence

import msgspec

from coordinator.http.chat_schemas import CalledFunction, CalledTool, ChatMessage, TextPart
from coordinator.http.messages.blocks import (
    Block,
    MessageParam,
    ThinkingParam,
    ToolResultParam,
    ToolUseParam,
    joined,
)

_BILLING = "x-anthropic-billing-header:"


def conversation(
    system: str | Sequence[TextPart] | None, messages: Sequence[MessageParam]
) -> Iterator[ChatMessage]:
    """The system prompt and the messages, as messages of a chat."""
    yield from _system(system or ())
    for message in messages:
        match message.role:
            case "user":
                yield from _from_user(message)
            case "assistant":
                yield _from_assistant(message)
            case "system":
                yield ChatMessage(role="system", content=_text(message.blocks))


def _system(content: str | Sequence[TextPart]) -> Iterator[ChatMessage]:
    if not isinstance(content, str):
        # Claude Code's first block is for Anthropic's billing, not for the model, and differs in
        # every request, so that no two prompts would begin alike.
        content = [part for part in content if not part.text.startswith(_BILLING)]
    if text := joined(content):
        yield ChatMessage(role="system", content=text)


def _from_user(message: MessageParam) -> Iterator[ChatMessage]:
    """Messages of a user's message: each result is one, and so are the texts between two
    results."""
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
