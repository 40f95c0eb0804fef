"""The form of output that a request asks for, and the verdict of the grammar compiler on it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from llguidance import LLTokenizer
from msgspec import Struct

from coordinator.text import grammars
from coordinator.text.grammars import BadGrammar

_MAX_PROBLEM_LEN = 1_000

Kind = Literal["", "json", "regex", "choice", "grammar", "json_object"]


class Form(Struct, frozen=True, omit_defaults=True):
    """The form of an output. ``kind`` says what ``value`` is; "" for any text. ``functions`` are
    tools, each with ``name`` and perhaps ``parameters``. Calls of them are ``required``, or may
    accompany the text; with ``parallel`` there may be several."""

    kind: Kind = ""
    value: Any = None
    functions: list[dict[str, Any]] = []
    required: bool = False
    parallel: bool = True


class Verdict(Struct, frozen=True, omit_defaults=True):
    """The result of a check: the ``grammar``, or the ``problem`` with the form (with the tools, if
    ``of_tools``). ``bug`` is the traceback of an unexpected exception."""

    grammar: str = ""
    problem: str = ""
    of_tools: bool = False
    bug: str = ""


def verdict(form: Form, tokenizer: LLTokenizer) -> Verdict:
    """Compile a form. This may take long or much memory, or crash the process: grammar_server.py
    limits it."""
    of_tools = False
    try:
        grammar = _MAKERS[form.kind](form.value)
        if form.functions:
            of_tools = True
            grammar = grammars.tool_calls(
                form.functions, required=form.required, parallel=form.parallel, answer=grammar
            )
        problem = grammars.problem(grammar, tokenizer)
    except BadGrammar as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    if problem:
        first_lines = " ".join(problem.split("\n")[:2])
        return Verdict(problem=first_lines[:_MAX_PROBLEM_LEN], of_tools=of_tools)
    return Verdict(grammar)


def _json(schema: Any) -> str:
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except msgspec.DecodeError as error:
            raise BadGrammar(f"is not JSON: {error}") from None
    return grammars.json_schema(schema)


_MAKERS: Mapping[str, Callable[[Any], str]] = {
    "": lambda _: "",
    "json": _json,
    "regex": grammars.regex,
    "choice": grammars.choice,
    "grammar": grammars.context_free,
    "json_object": lambda _: grammars.json_object(),
}
