"""From the tools of a request for a response to the functions of a chat. Pure.

A function of a namespace gets a name that joins both, as the chat template knows no namespaces; in
the answer's calls the name is taken apart again.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from coordinator.http.chat_schemas import MAX_NAME_LEN, FunctionSpec, Tool, ToolChoice
from coordinator.http.request_fields import FieldError
from coordinator.http.responses.tools import ResponseTool, ResponseToolChoice

Choice = Literal["none", "auto", "required"] | ToolChoice | None
_BETWEEN = "__"


class Function(NamedTuple):
    """Where a function stands in the request; ``namespace`` is "" for a function outside of all."""

    namespace: str
    name: str

    @property
    def joined(self) -> str:
        """The name that the model sees and writes."""
        if not self.namespace or self.namespace.endswith(_BETWEEN):
            return self.namespace + self.name
        return self.namespace + _BETWEEN + self.name


class FunctionNames:
    """Takes the names of functions apart, given the tools of a request."""

    def __init__(self, tools: Sequence[ResponseTool] | None) -> None:
        self._by_joined = {each.joined: each for each, _ in _functions(tools or ())}

    def apart(self, joined: str) -> Function:
        """The function of this joined name; outside of all namespaces if there is none."""
        return self._by_joined.get(joined, Function("", joined))


def ignored_tools(tools: Sequence[ResponseTool] | None) -> list[str]:
    """A warning for each hosted tool."""
    return [
        f"tools[{i}]: this server does not run {tool.type}; it is ignored"
        for i, tool in enumerate(tools or ())
        if tool.is_hosted
    ]


def chat_tools(
    tools: Sequence[ResponseTool], choice: str | ResponseToolChoice | None
) -> tuple[list[Tool] | None, Choice]:
    """``tools`` and ``tool_choice`` of the chat. Raises FieldError."""
    given = list(_functions(tools))
    for function, _ in given:
        if len(function.joined) > MAX_NAME_LEN:
            problem = f"the name {function.joined[:64]}… has more than {MAX_NAME_LEN} characters"
            raise FieldError("tools", problem)
    if isinstance(choice, ResponseToolChoice) and choice.type == "allowed_tools":
        allowed = _allowed([function for function, _ in given], choice)
        given = [each for each in given if each[0] in allowed]
        choice = choice.mode
    if choice == "required" and not given and any(tool.is_hosted for tool in tools):
        raise FieldError(
            "tool_choice", "'required' needs a function; hosted tools are not run here"
        )
    found = [Tool(function=spec) for _, spec in given] or None
    if not isinstance(choice, ResponseToolChoice):
        return found, choice  # type: ignore[return-value]
    function = _found(
        [function for function, _ in given], choice.name or "", choice.namespace or None
    )
    return found, ToolChoice.of(function.joined)


def _functions(tools: Sequence[ResponseTool]) -> Iterator[tuple[Function, FunctionSpec]]:
    """Each function with its spec. The description of a namespace begins that of its first
    function."""
    for tool in tools:
        if tool.type == "function":
            yield _function("", tool, tool.description)
        for i, inner in enumerate(tool.tools or ()):
            told = (tool.description if i == 0 else None, inner.description)
            yield _function(tool.name or "", inner, "\n\n".join(filter(None, told)) or None)


def _function(
    namespace: str, tool: ResponseTool, description: str | None
) -> tuple[Function, FunctionSpec]:
    function = Function(namespace, tool.name or "")
    return function, FunctionSpec(
        name=function.joined, description=description, parameters=tool.parameters,
        strict=tool.strict,
    )  # fmt: skip


def _allowed(functions: Sequence[Function], choice: ResponseToolChoice) -> set[Function]:
    allowed: set[Function] = set()
    for tool in choice.tools or ():
        if tool.type == "namespace":
            allowed.update(each for each in functions if each.namespace == tool.name)
        elif tool.type == "function":
            allowed.add(_found(functions, tool.name or "", tool.namespace or None))
    return allowed


def _found(functions: Sequence[Function], name: str, namespace: str | None) -> Function:
    """The function of this name, or of this joined name, or the only one of this name in any
    namespace. Raises FieldError."""
    given = Function(namespace or "", name)
    matches = [each for each in functions if each == given]
    matches = matches or [each for each in functions if each.joined == given.joined]
    if not matches and namespace is None:
        matches = [each for each in functions if each.name == name]
    if len(matches) != 1:
        many = "more than one tool" if matches else "no tool"
        raise FieldError("tool_choice", f"there is {many} {given.joined[:64]!r}")
    return matches[0]
