"""What a request says of tools and of the form of its answer, as OpenAI and vLLM have it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

MAX_TOOLS = 1_024


class CalledFunction(Struct, kw_only=True):
    """``arguments`` is a JSON object as text, as the model's answers have it."""

    name: str
    arguments: str = "{}"


class CalledTool(Struct, kw_only=True):
    """A call that the assistant made in an earlier turn."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    def rendered(self) -> dict[str, Any]:
        """As the chat template sees it, with ``arguments`` as an object. Raises ValueError."""
        arguments = msgspec.json.decode(self.function.arguments or "{}")
        if not isinstance(arguments, dict):
            raise ValueError("arguments is not a JSON object")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


class FunctionSpec(Struct, kw_only=True, omit_defaults=True):
    """``parameters`` is the JSON schema of an object; ``strict``: calls always fit it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Literal["function"] = "function"
    function: FunctionSpec


class FunctionName(Struct, kw_only=True):
    name: str


class NamedTool(Struct, kw_only=True):
    """The one function that has to be called."""

    type: Literal["function"] = "function"
    function: FunctionName


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
    """JSON that a schema allows."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(Struct, kw_only=True, omit_defaults=True):
    """vLLM's: at most one of these."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
