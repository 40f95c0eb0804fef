"""Checks: tools in /v1/chat/completions."""

import json
from collections.abc import Sequence
from typing import Any

from bench.harness.conformance.check import (
    ADD_PARAMETERS,
    CLIENTS,
    SUM,
    Ask,
    bad_request,
    chat,
    messages,
    recommended,
)
from bench.harness.conformance.server import Answer, Call, Choice, Completion, Server, require

_UNITS = {"type": "string", "enum": ["shells", "cups"]}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "add": ADD_PARAMETERS,
    "unit": {**ADD_PARAMETERS, "properties": {"of": _UNITS}, "required": ["of"]},
}
_DESCRIPTIONS = {"add": "Adds two numbers.", "unit": "Says in what something is counted."}
_TOOLS = [
    {"type": "function", "function": {"name": n, "description": d, "parameters": _PARAMETERS[n]}}
    for n, d in _DESCRIPTIONS.items()
]
_CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 13, "b": 46}'},
        }
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "59"}
_WITH_RESULT = [{"role": "user", "content": SUM}, _CALLED, _RESULT]


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _ask(**fields: Any) -> Ask:
    return chat(**{"tools": _TOOLS, "max_tokens": 256, **fields})


def fits(call: Call) -> None:
    """Raise Violation unless ``call`` is a whole call of one of the functions, with arguments of
    the right types."""
    require(call.id, f"a call without id: {call}")
    require(call.type == "function", f"the type of a call is {call.type!r}")
    name, text = call.function.name, call.function.arguments
    if name not in _PARAMETERS:
        require(False, f"a call of {name!r}")
        return
    try:
        arguments = json.loads(text or "")
    except ValueError:
        require(False, f"arguments that are not JSON: {text!r}")
        return
    require(isinstance(arguments, dict), f"arguments that are no object: {text!r}")
    require(
        sorted(arguments) == _PARAMETERS[name]["required"], f"the arguments of {name} are {text!r}"
    )
    if name == "add":
        whole = all(type(value) is int for value in arguments.values())
        require(whole, f"not the integers that the schema asks for: {text!r}")


def _calls(choice: Choice) -> Sequence[Call]:
    found = (choice.message and choice.message.tool_calls) or []
    for call in found:
        fits(call)
    reason = choice.finish_reason
    if found:
        require(reason in ("tool_calls", "stop"), f"finish_reason is {reason!r} after calls")
    return found


def _one_call(answer: Answer, name: str | None = None) -> None:
    choice = answer.completion(optional=True).choice
    found = _calls(choice)
    require(len(found) == 1, f"{len(found)} calls: {choice.message}")
    require(name in (None, found[0].function.name), f"{found[0].function.name!r} was called")


def named(answer: Answer) -> None:
    _one_call(answer, "unit")


def required(answer: Answer) -> str:
    choice = answer.completion(optional=True).choice
    found = _calls(choice)
    require(found, f"no call: {choice.message}")
    reason = choice.finish_reason
    require(reason == "tool_calls", f"finish_reason is {reason!r}, not 'tool_calls'")
    require(len({call.id for call in found}) == len(found), "two calls with one id")
    return f"{len(found)} called"


def auto(answer: Answer) -> str:
    choice = answer.completion(optional=True).choice
    found = _calls(choice)
    require(found or (choice.message and choice.message.content), f"nothing: {choice}")
    return f"{len(found)} called"


def no_calls(answer: Answer) -> None:
    choice = answer.completion(optional=True).choice
    require(not _calls(choice), f"calls in {choice.message}")
    require(choice.message and choice.message.content, f"no text in {choice.message}")


async def streamed(server: Server) -> str:
    fields: dict[str, Any] = {"tool_choice": _named("add"), "temperature": 0}
    answer = await _ask(stream=True, **fields)(server)
    answer.ok(optional=True)
    found = answer.chunks()
    call, pieces = _assembled(found)
    fits(call)
    reasons = [each.finish_reason for chunk in found for each in chunk.choices]
    given = [reason for reason in reasons if reason]
    require(given in (["tool_calls"], ["stop"]), f"finish reasons: {given}")
    (whole,) = _calls((await _ask(**fields)(server)).completion().choice)
    same = json.loads(whole.function.arguments or "") == json.loads(call.function.arguments or "")
    return f"{pieces} deltas" if same else "the arguments differ from those of the whole answer"


def _assembled(chunks: Sequence[Completion]) -> tuple[Call, int]:
    """The only call that the deltas make up, and the number of deltas."""
    deltas = [
        call
        for chunk in chunks
        for choice in chunk.choices
        for call in (choice.delta and choice.delta.tool_calls) or ()
    ]
    require(deltas, "no tool_calls in the stream")
    first, *others = deltas
    require({each.index for each in deltas} == {0}, f"indices: {[each.index for each in deltas]}")
    require(first.function.name, f"the first delta has no name: {first}")
    for each in others:
        require(not each.function.name, f"the name came again: {each}")
        require(each.id in (None, "", first.id), f"another id for the same call: {each}")
    text = "".join(each.function.arguments or "" for each in deltas)
    function = type(first.function)(first.function.name, text)
    return Call(index=0, id=first.id, type=first.type, function=function), len(deltas)


CHECKS = (
    recommended("a named function is called", _ask(tool_choice=_named("unit")), named),
    recommended("required: one call at least", _ask(tool_choice="required"), required),
    recommended(
        "parallel_tool_calls false: one call",
        _ask(tool_choice="required", parallel_tool_calls=False),
        _one_call,
    ),
    recommended("auto: text, or calls that fit", _ask(), auto),
    recommended("none: text", _ask(tool_choice="none"), no_calls),
    recommended("a call is streamed as deltas", streamed),
    recommended(
        "results of calls in the messages",
        messages(messages=_WITH_RESULT, tools=_TOOLS, tool_choice="none", max_tokens=64),
        no_calls,
    ),
    recommended(
        "a tool_choice that is no tool is a 400",
        _ask(tool_choice=_named("other")),
        bad_request,
        CLIENTS,
    ),
)
