"""The fields of a Messages request about tools, the thought and the form of the answer."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from coordinator.http.chat_schemas import ToolName
from coordinator.http.sampling_fields import INT32_MAX

Display = Literal["summarized", "omitted"]


class ToolParam(Struct, kw_only=True):
    """A tool that the client runs; ``strict``: calls always fit the schema. Tools of other types,
    which a server runs or a model was trained on, are refused by their type."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class _Parallel(Struct, kw_only=True):
    disable_parallel_tool_use: bool | None = None


class ToolChoiceAuto(_Parallel, tag_field="type", tag="auto"):
    """The model decides."""


class ToolChoiceAny(_Parallel, tag_field="type", tag="any"):
    """At least one call."""


class ToolChoiceTool(_Parallel, tag_field="type", tag="tool"):
    """A call of this tool."""

    name: str


class ToolChoiceNone(Struct, tag_field="type", tag="none"):
    """No call; the prompt has no tools."""


ToolChoice = ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone


class ThinkingEnabled(Struct, tag_field="type", tag="enabled", kw_only=True):
    """A thought of at most ``budget_tokens``. ``omitted``: its text is not returned."""

    budget_tokens: Annotated[int, Meta(ge=1, le=INT32_MAX)]
    display: Display | None = None


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive", kw_only=True):
    """A thought of any length."""

    display: Display | None = None


class ThinkingDisabled(Struct, tag_field="type", tag="disabled"):
    """No thought, which is the default."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class OutputFormat(
    Struct, tag_field="type", tag="json_schema", kw_only=True, rename={"schema_": "schema"}
):
    """JSON that fits a schema."""

    schema_: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    """Settings of the output. ``effort`` has no effect: the model has no such degrees."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
