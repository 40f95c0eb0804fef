"""The bodies and events of the Messages API: encoded by msgspec, described in /openapi.json."""

from typing import Any, Literal, get_args

from msgspec import UNSET, UnsetType

from coordinator.http.response_schemas import Body

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]
ErrorType = Literal[
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
    "request_too_large", "rate_limit_error", "timeout_error", "overloaded_error", "api_error",
]  # fmt: skip


class TextBlock(Body, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Body, tag_field="type", tag="thinking"):
    """The thought; ``signature`` is a digest of it."""

    thinking: str
    signature: str


class ToolUseBlock(Body, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(Body, kw_only=True):
    """Numbers of tokens: of the prompt that were computed, of the whole answer until now, and of
    the prompt that came from the prefix cache. Writes to the cache are not reported."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Message(Body, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageStart(Body, tag_field="type", tag="message_start"):
    """The first event; ``message`` has no content yet."""

    message: Message


class Ping(Body, tag_field="type", tag="ping"):
    pass


class ContentBlockStart(Body, tag_field="type", tag="content_block_start"):
    """Block ``index`` of the message begins; it is empty yet."""

    index: int
    content_block: ContentBlock


class TextDelta(Body, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Body, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Body, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(Body, tag_field="type", tag="input_json_delta"):
    """A piece of the JSON of a tool's input."""

    partial_json: str


class ContentBlockDelta(Body, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(Body, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(Body, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Body, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessagesUsage


class MessageStop(Body, tag_field="type", tag="message_stop"):
    pass


BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop
MessagesEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop
"""The events of a stream, in this order; each has its ``type`` as its name."""
MESSAGES_EVENTS: tuple[type[MessagesEvent], ...] = get_args(MessagesEvent)


class TokensCount(Body, kw_only=True):
    input_tokens: int


class ErrorDetails(Body, kw_only=True):
    error_code: str


class MessagesError(Body, kw_only=True):
    """An error; ``details`` have the code that errors have on the other paths."""

    type: ErrorType
    message: str
    details: ErrorDetails | UnsetType = UNSET


class MessagesErrorBody(Body, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesError
    request_id: str | None
