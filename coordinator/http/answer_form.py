"""The form that a request wants its answer to have, given by its tools or by a field for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coordinator.http.chat_schemas import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    StructuredOutputs,
    Tool,
)
from coordinator.http.errors import invalid
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.text.forms import Form, Kind
from coordinator.text.grammars import MAX_LEN
from coordinator.text.tool_values import Schema


def check_form(request: GenerationRequest) -> None:
    """Raises ApiError for a form that is requested twice, or is larger than any grammar may be."""
    if (asked := form_of(request)) is None:
        return
    form, param = asked
    for value, name in ((form.value, param), (form.functions, "tools")):
        if (num_bytes := len(msgspec.json.encode(value))) > MAX_LEN:
            message = f"has {num_bytes} bytes, more than {MAX_LEN}"
            raise invalid(name, message, "invalid_grammar")


def tool_parameters(request: GenerationRequest) -> Mapping[str, Schema] | None:
    """The parameters of each tool that the answer may call, as AnswerParser takes them. They
    reference nothing else of the request."""
    functions = [tool.function for tool in _callable_tools(request)]
    return {function.name: function.parameters or {} for function in functions} or None


def _callable_tools(request: GenerationRequest) -> Sequence[Tool]:
    """The tools that the answer may call."""
    if not isinstance(request, ChatRequest) or request.tool_choice == "none":
        return ()
    tools = request.tools or ()
    if isinstance(request.tool_choice, NamedTool):
        name = request.tool_choice.function.name
        return [tool for tool in tools if tool.function.name == name]
    return tools


def form_of(request: GenerationRequest) -> tuple[Form, str] | None:
    """The form of the answer and the field that requests it; None if any text is allowed. Raises
    ApiError."""
    asked = _asked(request)
    if len(asked) > 1:
        raise invalid(asked[1][0], f"cannot be combined with {asked[0][0]}")
    nothing: tuple[str, Kind, Any] = ("tools", "", None)
    param, kind, value = asked[0] if asked else nothing
    tools = _callable_tools(request)
    if not tools or not isinstance(request, ChatRequest):
        return (Form(kind, value), param) if asked else None
    required = request.tool_choice not in (None, "auto")
    one = request.parallel_tool_calls is False or isinstance(request.tool_choice, NamedTool)
    if not (asked or required or one or any(tool.function.strict for tool in tools)):
        return None
    functions = [msgspec.to_builtins(tool.function) for tool in tools]
    return Form(kind, value, functions, required=required, parallel=not one), param


def _asked(request: GenerationRequest) -> list[tuple[str, Kind, Any]]:
    """Each field that gives the answer a form, with the kind and the value of the form."""
    found: list[tuple[str, Kind, Any]] = []
    match request.response_format:
        case JsonObjectFormat():
            found.append(("response_format", "json_object", None))
        case JsonSchemaFormat(json_schema=wanted):
            schema = {} if wanted.schema_ is None else wanted.schema_
            found.append(("response_format.json_schema.schema", "json", schema))
    outputs = request.structured_outputs or StructuredOutputs()
    given: list[tuple[str, Kind, Any]] = [
        ("structured_outputs.json", "json", outputs.json),
        ("structured_outputs.regex", "regex", outputs.regex),
        ("structured_outputs.choice", "choice", outputs.choice),
        ("structured_outputs.grammar", "grammar", outputs.grammar),
        ("structured_outputs.json_object", "json_object", outputs.json_object or None),
        ("guided_json", "json", request.guided_json),
        ("guided_regex", "regex", request.guided_regex),
        ("guided_choice", "choice", request.guided_choice),
        ("guided_grammar", "grammar", request.guided_grammar),
    ]
    return found + [each for each in given if each[2] is not None]
