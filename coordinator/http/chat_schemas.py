"""Messages, tools and forms of answers in requests, with the names that OpenAI and vLLM use."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from coordinator.http.request_fields import UNSUPPORTED, FieldError, RequestBody, Unsupported, whole
from coordinator.text.cut_json import completed_object

MAX_MESSAGES = 16_384
"""Limit of messages and text parts in a conversation: each takes the template some time."""
MAX_TOOLS = 1_024
MAX_NAME_LEN = 128
ToolName = Annotated[str, whole(rf"[A-Za-z0-9_.:-]{{1,{MAX_NAME_LEN}}}")]
ROLES = ("system", "developer", "user", "assistant", "tool")
_LATER_ROLES = ("function",)


class CalledFunction(Struct, kw_only=True, dict=True):
    """A function with the arguments of a call. ``arguments`` is a JSON object as text, as in the
    answers of the model."""

    name: str
    arguments: str = "{}"

    @cached_property
    def decoded(self) -> dict[str, Any]:
        """The object in ``arguments``, as far as it goes. Raises ValueError."""
        return earlier_arguments(self.arguments)


def earlier_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call in an earlier turn, where a limit or a stop string may have cut them
    off. Raises ValueError that says what is wrong."""
    try:
        return decoded_arguments(text)
    except ValueError:
        if (found := completed_object(text)) is None:
            raise
        return found


def decoded_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call; {} for an empty text. Raises ValueError that says what is wrong."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ValueError(f"is not a JSON object: {error}") from None
    if not isinstance(arguments, dict):
        raise ValueError("is not a JSON object")
    return arguments


class CalledTool(Struct, kw_only=True):
    """A call that the assistant made in an earlier turn."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    def rendered(self) -> dict[str, Any]:
        """The call as the chat template sees it, with ``arguments`` as an object."""
        function = {"name": self.function.name, "arguments": self.function.decoded}
        return {"id": self.id, "type": self.type, "function": function}


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class InputTextPart(Struct, tag_field="type", tag="input_text"):
    """A part of the Responses API, which some clients send in chats too."""

    text: str


class OutputTextPart(Struct, tag_field="type", tag="output_text"):
    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """What a model said instead of an answer."""

    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


ChatPart = TextPart | InputTextPart | OutputTextPart | RefusalPart


class ChatMessage(RequestBody, kw_only=True):
    """One message of a chat. ``developer`` is OpenAI's newer name of ``system``. ``refusal``: what
    an assistant said instead of ``content``."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | list[ChatPart] | None = None
    refusal: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    audio: Unsupported = UNSET
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
                _ = call.function.decoded
            except ValueError as error:
                raise FieldError(f"tool_calls[{i}].function.arguments", str(error)) from None

    def rendered(self) -> dict[str, Any]:
        """The message as the chat template sees it."""
        content = self.content or self.refusal or ""
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


def check_continued(messages: Sequence[ChatMessage], add_generation_prompt: bool | None) -> None:
    """Raises FieldError if the last message cannot be continued."""
    param, last = "continue_final_message", messages[-1]
    if add_generation_prompt:
        raise FieldError(param, "cannot be combined with add_generation_prompt")
    if not last.content or last.tool_calls:
        raise FieldError(param, "needs a last message with content and without tool_calls")


def check_tool_names(names: Sequence[str]) -> None:
    """Raises FieldError for too many tools, and for two tools with one name."""
    if len(names) > MAX_TOOLS:
        raise FieldError("tools", f"at most {MAX_TOOLS} tools, got {len(names)}")
    if len(set(names)) < len(names):
        raise FieldError("tools", "two tools have one name")


class FunctionSpec(Struct, kw_only=True, omit_defaults=True):
    """A function that the model may call. ``parameters`` is the JSON schema of an object;
    ``strict``: calls always fit it."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionSpec


class FunctionName(Struct, kw_only=True):
    name: str


class AllowedTool(Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    """The tools that may be called, and whether one has to be."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class ToolChoice(Struct, kw_only=True):
    """The one function that has to be called, or with ``allowed_tools`` those that may be."""

    type: Literal["function", "allowed_tools"] = "function"
    function: FunctionName | UnsetType = UNSET
    allowed_tools: AllowedTools | UnsetType = UNSET

    def __post_init__(self) -> None:
        if getattr(self, self.type) is UNSET:
            raise FieldError("", f"{self.type} is missing")

    @property
    def name(self) -> str:
        """The name of the function that has to be called; "" if the choice is another."""
        return self.function.name if self.function else ""

    @staticmethod
    def of(name: str) -> "ToolChoice":
        """The choice of the function ``name``."""
        return ToolChoice(function=FunctionName(name=name))


class TextFormat(Struct, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchema(Struct, kw_only=True, omit_defaults=True, rename={"schema_": "schema"}):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: JsonSchema


class StructuralTagFormat(Struct, tag_field="type", tag="structural_tag"):
    """Free text in which what stands between tags fits a schema, as in vLLM and SGLang."""

    structures: list[dict[str, Any]]
    triggers: list[str]


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(RequestBody, kw_only=True):
    """vLLM's field for the form of an answer: at most one of these."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    disable_additional_properties: Unsupported = UNSET
    disable_any_whitespace: Unsupported = UNSET
    whitespace_pattern: Unsupported = UNSET
