"""The fields ``tools`` and ``tool_choice`` of a request for a response.

Functions stand alone or in namespaces. Hosted tools are run by OpenAI, and this server has none.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from coordinator.http.chat_schemas import ToolName
from coordinator.http.request_fields import UNSUPPORTED, FieldError

HOSTED = (
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
    "file_search", "code_interpreter", "image_generation", "mcp", "tool_search",
)  # fmt: skip
"""Types of the tools that OpenAI runs. They are ignored where the model need not call them."""
_TYPES = ("function", "namespace", *HOSTED)


class ResponseTool(Struct, kw_only=True, omit_defaults=True):
    """A function, a namespace with functions in ``tools``, or a hosted tool; other fields of a
    hosted tool are dropped. ``parameters`` is the JSON schema of an object; ``strict``: calls
    always fit it."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(_TYPES)})]
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list["ResponseTool"] | None = None

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            message = f"the tool {self.type[:40]!r} is not supported; functions are"
            raise FieldError("type", message, UNSUPPORTED)
        if self.is_hosted:
            self.name = self.description = self.parameters = self.strict = self.tools = None
            return
        if self.name is None:
            raise FieldError("", "name is missing")
        if self.type == "namespace":
            self._check_namespace()

    @property
    def is_hosted(self) -> bool:
        """True if OpenAI would run this tool."""
        return self.type in HOSTED

    def _check_namespace(self) -> None:
        for i, tool in enumerate(self.tools or ()):
            if tool.type != "function":
                message = f"the namespace {self.name!r} has a tool {tool.type!r}; functions may be"
                raise FieldError(f"tools[{i}].type", message, UNSUPPORTED)


class AllowedTool(Struct, kw_only=True):
    """A tool that may be called: one function, all functions of a namespace, or a hosted tool."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(_TYPES)})] = "function"
    name: str | UnsetType | None = UNSET
    namespace: str | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise FieldError("type", f"the tool {self.type[:40]!r} is not supported", UNSUPPORTED)
        if self.type not in HOSTED and not self.name:
            raise FieldError("", "name is missing")


class ResponseToolChoice(Struct, kw_only=True, omit_defaults=True):
    """The one function that has to be called, or with ``allowed_tools`` those that may be.
    ``namespace``: that of the function."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["function", "allowed_tools"]})]
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None

    def __post_init__(self) -> None:
        if self.type in HOSTED:
            message = f"this server does not run {self.type!r}, so it cannot be required"
            raise FieldError("type", message, UNSUPPORTED)
        if self.type not in ("function", "allowed_tools"):
            message = f"{self.type[:40]!r} is not supported; only functions are"
            raise FieldError("type", message, UNSUPPORTED)
        needed = ("name",) if self.type == "function" else ("mode", "tools")
        for name in needed:
            if getattr(self, name) is None:
                raise FieldError("", f"{name} is missing")
