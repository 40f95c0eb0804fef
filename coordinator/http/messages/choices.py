"""What a Messages request says of tools, of the thought and of the form of the answer."""

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
    """One call at least."""


class ToolChoiceTool(_Parallel, tag_field="type", tag="tool"):
    """A call of this tool."""

    name: str


class ToolChoiceNone(Struct, tag_field="type", tag="none"):
    """No call; the prompt has no tools."""


ToolChoice = ToolChoiceAuto | ToolChoiceAny | ToolChoiceTool | ToolChoiceNone


class ThinkingEnabled(Struct, tag_field="type", tag="enabled", kw_only=True):
    """A thought of ``budget_tokens`` at most. ``omitted``: its text is not told."""

    budget_tokens: Annotated[int, Meta(ge=1, le=INT32_MAX)]
    display: Display | None = None


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive", kw_only=True):
    """A thought as long as the model makes it."""

    display: Display | None = None


class ThinkingDisabled(Struct, tag_field="type", tag="disabled"):
    """No thought, which is the default."""


Thinking = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class OutputFormat(
    Struct, tag_field="type", tag="json_schema", kw_only=True, rename={"schema_": "schema"}
):
    """JSON that the schema allows."""

    schema_: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    """``effort`` changes nothing: the model has no such degrees."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
