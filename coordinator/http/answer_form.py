"""The form that a request wants its answer to have, given by its tools or by a field for it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from coordinator.http.chat_schemas import (
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuralTagFormat,
    StructuredOutputs,
    Tool,
    ToolChoice,
)
from coordinator.http.errors import invalid
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.text.forms import Form, Kind
from coordinator.text.grammars import MAX_LEN
from coordinator.text.tool_values import Schema

_Asked = tuple[str, Kind, Any]


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
    if isinstance(request.tool_choice, ToolChoice):
        name = request.tool_choice.name
        return [tool for tool in tools if tool.function.name == name]
    return tools


def form_of(request: GenerationRequest) -> tuple[Form, str] | None:
    """The form of the answer and the field that requests it; None if any text is allowed. Raises
    ApiError."""
    asked = _asked(request)
    for other in asked[1:]:
        if not _equal(other, asked[0]):
            raise invalid(other[0], f"cannot be combined with {asked[0][0]}: one form at most")
    nothing: _Asked = ("tools", "", None)
    param, kind, value = asked[0] if asked else nothing
    tools = _callable_tools(request)
    if not tools or not isinstance(request, ChatRequest):
        return (Form(kind, value), param) if asked else None
    required = request.tool_choice not in (None, "auto")
    one = request.parallel_tool_calls is False or isinstance(request.tool_choice, ToolChoice)
    if not (asked or required or one or any(tool.function.strict for tool in tools)):
        return None
    functions = [msgspec.to_builtins(tool.function) for tool in tools]
    return Form(kind, value, functions, required=required, parallel=not one), param


def _equal(one: _Asked, other: _Asked) -> bool:
    """True if both ask for the same form; a schema may be given as text."""
    return one[1] == other[1] and _as_schema(one) == _as_schema(other)


def _as_schema(asked: _Asked) -> Any:
    _, kind, value = asked
    if kind == "json" and isinstance(value, str):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(value)
    return value


def _asked(request: GenerationRequest) -> list[_Asked]:
    """Each field that gives the answer a form, with the kind and the value of the form."""
    found: list[_Asked] = []
    match request.response_format:
        case JsonObjectFormat():
            found.append(("response_format", "json_object", None))
        case JsonSchemaFormat(json_schema=wanted):
            schema = {} if wanted.schema_ is None else wanted.schema_
            found.append(("response_format.json_schema.schema", "json", schema))
        case StructuralTagFormat(structures=structures, triggers=triggers):
            tag = {"structures": structures, "triggers": triggers}
            found.append(("response_format", "structural_tag", tag))
    outputs = request.structured_outputs or StructuredOutputs()
    given: list[_Asked] = [
        ("structured_outputs.json", "json", outputs.json),
        ("structured_outputs.regex", "regex", outputs.regex),
        ("structured_outputs.choice", "choice", outputs.choice),
        ("structured_outputs.grammar", "grammar", outputs.grammar),
        ("structured_outputs.json_object", "json_object", outputs.json_object or None),
        ("structured_outputs.structural_tag", "structural_tag", outputs.structural_tag),
        ("guided_json", "json", request.guided_json),
        ("guided_regex", "regex", request.guided_regex),
        ("guided_choice", "choice", request.guided_choice),
        ("guided_grammar", "grammar", request.guided_grammar),
        # Clients of SGLang and llama.cpp send an empty text for none.
        ("regex", "regex", request.regex or None),
        ("ebnf", "grammar", request.ebnf or None),
        ("grammar", "grammar", request.grammar or None),
        ("structural_tag", "structural_tag", request.structural_tag or None),
        ("json_schema", "json", None if request.json_schema == "" else request.json_schema),
        ("allowed_token_ids", "token_ids", request.allowed_token_ids or None),
        ("bad_words", "without", request.bad_words or None),
    ]
    return found + [each for each in given if each[2] is not None]
