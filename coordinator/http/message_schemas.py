"""The messages of a conversation, as requests have them."""

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct

from coordinator.http.request_fields import UNSUPPORTED, FieldError, RequestBody, Unsupported
from coordinator.http.tool_schemas import CalledTool

MAX_MESSAGES = 16_384
"""Messages and text parts of a conversation: each takes a template's time."""
ROLES = ("system", "developer", "user", "assistant", "tool")
_LATER_ROLES = ("function",)


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ChatMessage(RequestBody, kw_only=True):
    """One turn. ``developer`` is OpenAI's newer name of ``system``."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    function_call: Unsupported = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.role in _LATER_ROLES:
            message = "role 'function' is not supported by this server; use role 'tool'"
            raise FieldError("role", message, UNSUPPORTED)
        if self.role not in ROLES:
            raise FieldError("role", f"must be one of {', '.join(ROLES)}")
        if self.content is None and self.role != "assistant":
            raise FieldError("", "content is missing")
        if self.tool_calls and self.role != "assistant":
            raise FieldError("tool_calls", "only an assistant's message has them")
        for i, call in enumerate(self.tool_calls or ()):
            try:
                call.rendered()
            except ValueError as error:
                path = f"tool_calls[{i}].function.arguments"
                raise FieldError(path, f"is no JSON object: {error}") from None

    def rendered(self) -> dict[str, Any]:
        """As the chat template sees it."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content,
        }
        if self.name is not None:
            message["name"] = self.name
        if (thought := self.reasoning_content or self.reasoning) is not None:
            message["reasoning_content"] = thought
        if self.tool_calls:
            message["tool_calls"] = [call.rendered() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


Messages = Annotated[list[ChatMessage], Meta(min_length=1)]


def check_number(messages: Sequence[ChatMessage]) -> None:
    """Raises FieldError for more messages and parts than a conversation may have."""
    contents = [message.content for message in messages]
    num = len(contents) + sum(len(content) for content in contents if isinstance(content, list))
    if num > MAX_MESSAGES:
        raise FieldError("messages", f"at most {MAX_MESSAGES} messages and parts, got {num}")
