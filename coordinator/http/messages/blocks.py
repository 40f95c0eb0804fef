"""The messages of a Messages request, and their blocks.

A block of another type (an image, a document, the result of a server tool) is refused by its name.
``cache_control`` and ``citations`` change nothing here and are not read.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from coordinator.http.chat_schemas import MAX_MESSAGES, TextPart
from coordinator.http.request_fields import FieldError


class ThinkingParam(Struct, tag_field="type", tag="thinking"):
    """A thought of an earlier answer. Its signature is not checked."""

    thinking: str
    signature: str = ""


class RedactedThinkingParam(Struct, tag_field="type", tag="redacted_thinking"):
    """A thought that cannot be read; it is left out of the prompt."""

    data: str = ""


class ToolUseParam(Struct, tag_field="type", tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultParam(Struct, tag_field="type", tag="tool_result"):
    """The result of a call. ``is_error`` puts the word ``Error:`` before it."""

    tool_use_id: str
    content: str | list[TextPart] | None = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        return ("Error: " if self.is_error else "") + joined(self.content)


Block = TextPart | ThinkingParam | RedactedThinkingParam | ToolUseParam | ToolResultParam
_BLOCKS_OF = {
    "user": (TextPart, ToolResultParam),
    "assistant": (TextPart, ThinkingParam, RedactedThinkingParam, ToolUseParam),
    "system": (TextPart,),
}


class MessageParam(Struct, kw_only=True):
    """One message. ``system`` may come between the others."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    def __post_init__(self) -> None:
        for i, block in enumerate(self.blocks):
            if not isinstance(block, _BLOCKS_OF[self.role]):
                kind = block.__struct_config__.tag
                raise FieldError(f"content[{i}]", f"a {self.role} message has no {kind} blocks")

    @property
    def is_text(self) -> bool:
        """True if all blocks are text, and not empty."""
        texts = [block for block in self.blocks if isinstance(block, TextPart)]
        return len(texts) == len(self.blocks) and joined(texts) != ""

    @property
    def blocks(self) -> Sequence[Block]:
        return [TextPart(self.content)] if isinstance(self.content, str) else self.content


MessageParams = Annotated[list[MessageParam], Meta(min_length=1)]


def joined(content: str | Iterable[TextPart] | None) -> str:
    """The text of a string, or of blocks."""
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


def check_number_of_blocks(messages: Sequence[MessageParam]) -> None:
    """Raises FieldError for more messages and blocks than a conversation may have."""
    num = len(messages)
    for message in messages:
        num += len(message.blocks)
        for block in message.blocks:
            if isinstance(block, ToolResultParam) and isinstance(block.content, list):
                num += len(block.content)
    if num > MAX_MESSAGES:
        raise FieldError("messages", f"at most {MAX_MESSAGES} messages and blocks, got {num}")
