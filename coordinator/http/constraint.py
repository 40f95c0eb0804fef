"""What a request's output may be: from its tools and its format to the constraint of its tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from coordinator.http.chat_schemas import JsonObjectFormat, JsonSchemaFormat, NamedTool, Tool
from coordinator.http.errors import ApiError, invalid
from coordinator.http.preparation import Prepared
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.while_connected import while_connected
from coordinator.text import grammars
from coordinator.text.grammars import BadGrammar
from coordinator.text.tokenizer import Tokenizer
from transport.wire.sampling import Constraint
from transport.wire.token_ids import TokenIds

_CLOSE, _ANSWER = "\n</think>", "\n\n"


async def constraint_for(
    http: Request, prepared: Prepared, tokenizer: Tokenizer
) -> Constraint | None:
    """``constraint_of`` off the event loop, where the request has anything that asks for it. Raises
    ApiError and ClientLeft."""
    request = prepared.request
    if not _may_be_constrained(request):
        return None
    work = tokenizer.run(constraint_of, request, tokenizer, prepared.prompts[0], aside=True)
    return await while_connected(work, http.receive)


def constraint_of(
    request: GenerationRequest, tokenizer: Tokenizer, prompt: TokenIds
) -> Constraint | None:
    """The constraint of the request's tokens, None without any. Raises ApiError for a schema or
    grammar that cannot be served. May take 100 ms."""
    grammar = _grammar(request, tokenizer)
    budget = request.thinking_token_budget if isinstance(request, ChatRequest) else None
    thinks = isinstance(request, ChatRequest) and tokenizer.opens_thought(prompt)
    if not grammar and not (thinks and budget is not None):
        return None
    if request.min_tokens:
        raise invalid("min_tokens", "cannot be combined with a constrained output")
    if not thinks:
        return Constraint(grammar)
    return Constraint(
        grammar,
        thought_end=tokenizer.thought_end,
        thought_budget=budget,
        closing_ids=tuple(tokenizer.encode(_CLOSE, add_special_tokens=False)),
        answer_ids=tuple(tokenizer.encode(_ANSWER, add_special_tokens=False)),
    )


def _may_be_constrained(request: GenerationRequest) -> bool:
    if _asked(request):
        return True
    return isinstance(request, ChatRequest) and (
        bool(request.tools) or request.thinking_token_budget is not None
    )


def callable_tools(request: GenerationRequest) -> Sequence[Tool]:
    """The tools that the answer may call."""
    if not isinstance(request, ChatRequest) or request.tool_choice == "none":
        return ()
    tools = request.tools or ()
    if isinstance(request.tool_choice, NamedTool):
        name = request.tool_choice.function.name
        return [tool for tool in tools if tool.function.name == name]
    return tools


def parameters_of(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """The JSON schema of each tool's parameters, by name."""
    return {tool.function.name: tool.function.parameters or {} for tool in tools}


def _grammar(request: GenerationRequest, tokenizer: Tokenizer) -> str:
    """The grammar of the answer, "" for any text."""
    asked = _asked(request)
    tools = callable_tools(request)
    if len(asked) > 1:
        raise invalid(asked[1][0], f"cannot be combined with {asked[0][0]}")
    param, build = asked[0] if asked else ("", lambda: "")
    try:
        grammar = build()
        if tools and isinstance(request, ChatRequest):
            required = request.tool_choice not in (None, "auto")
            strict = any(tool.function.strict for tool in tools)
            if required or strict or grammar:
                param = "tools"
                grammar = grammars.tool_calls(
                    [msgspec.to_builtins(tool.function) for tool in tools],
                    required=required,
                    parallel=request.parallel_tool_calls is not False
                    and not isinstance(request.tool_choice, NamedTool),
                    answer=grammar,
                )
    except BadGrammar as error:
        raise invalid(param, str(error), "invalid_grammar") from None
    if grammar and (problem := grammars.problem(grammar, tokenizer.for_grammars)):
        first_lines = " ".join(problem.split("\n")[:2])
        raise ApiError(400, f"{param}: {first_lines}", param=param, code="invalid_grammar")
    return grammar


def _asked(request: GenerationRequest) -> list[tuple[str, Callable[[], str]]]:
    """Each field that gives the answer a form, and how to make its grammar."""
    found: list[tuple[str, Callable[[], str]]] = []
    match request.response_format:
        case JsonObjectFormat():
            found.append(("response_format", grammars.json_object))
        case JsonSchemaFormat(json_schema=wanted):
            schema = {} if wanted.schema_ is None else wanted.schema_
            found.append(
                ("response_format.json_schema.schema", lambda: grammars.json_schema(schema))
            )
    outputs = request.structured_outputs
    for name, param, value in (
        ("json", "structured_outputs.json", outputs.json if outputs else None),
        ("regex", "structured_outputs.regex", outputs.regex if outputs else None),
        ("choice", "structured_outputs.choice", outputs.choice if outputs else None),
        ("grammar", "structured_outputs.grammar", outputs.grammar if outputs else None),
        (
            "json_object",
            "structured_outputs.json_object",
            (outputs and outputs.json_object) or None,
        ),
        ("json", "guided_json", request.guided_json),
        ("regex", "guided_regex", request.guided_regex),
        ("choice", "guided_choice", request.guided_choice),
        ("grammar", "guided_grammar", request.guided_grammar),
    ):
        if value is not None:
            found.append((param, _maker(name, value)))
    return found


def _maker(name: str, value: Any) -> Callable[[], str]:
    def json() -> str:
        try:
            schema = msgspec.json.decode(value) if isinstance(value, str) else value
        except msgspec.DecodeError as error:
            raise BadGrammar(f"is not JSON: {error}") from None
        return grammars.json_schema(schema)

    makers: dict[str, Callable[[], str]] = {
        "json": json,
        "regex": lambda: grammars.regex(value),
        "choice": lambda: grammars.choice(value),
        "grammar": lambda: grammars.context_free(value),
        "json_object": grammars.json_object,
    }
    return makers[name]
