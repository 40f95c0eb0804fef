"""The items of a response's ``input``: messages, function calls, their results, thoughts."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from coordinator.http.chat_schemas import (
    InputTextPart,
    OutputTextPart,
    RefusalPart,
    TextPart,
    earlier_arguments,
)
from coordinator.http.request_fields import UNSUPPORTED, FieldError

TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
ROLES = ("user", "assistant", "system", "developer")


class ReasoningTextPart(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryTextPart(Struct, tag_field="type", tag="summary_text"):
    text: str


Part = InputTextPart | OutputTextPart | RefusalPart | ReasoningTextPart | TextPart
Texts = str | list[Part] | list[SummaryTextPart] | None


class InputItem(Struct, kw_only=True, omit_defaults=True):
    """One item; ``type`` may be left out of a message. ``encrypted_content`` of a thought is not
    read: the thoughts of this server have their text."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(TYPES)})] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[SummaryTextPart] | None = None
    encrypted_content: str | None = None

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            message = f"items of type {self.type[:40]!r} are not supported by this server"
            raise FieldError("type", message, UNSUPPORTED)
        for name in _REQUIRED[self.type]:
            if getattr(self, name) is None:
                raise FieldError("", f"{name} is missing")
        if self.type == "message" and self.role not in ROLES:
            raise FieldError("role", f"must be one of {', '.join(ROLES)}")
        if self.type == "function_call" and not self.is_cut_off:
            try:
                earlier_arguments(self.arguments or "")
            except ValueError as error:
                raise FieldError("arguments", str(error)) from None

    @property
    def is_cut_off(self) -> bool:
        """True for a call whose arguments the model could not finish."""
        return self.type == "function_call" and self.status == "incomplete"

    @property
    def num_parts(self) -> int:
        """Number of the item's parts, plus one for the item."""
        lists = (self.content, self.output, self.summary)
        return 1 + sum(len(parts) for parts in lists if isinstance(parts, list))


_REQUIRED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    "item_reference": ("id",),
}


def text_of(content: Texts) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or ())
