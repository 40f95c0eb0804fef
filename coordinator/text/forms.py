"""The form of output that a request asks for, and the verdict of the grammar compiler on it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from llguidance import LLTokenizer
from msgspec import Struct

from coordinator.text import grammars
from coordinator.text.grammars import BadGrammar, compiler
from coordinator.text.relaxation import Relaxation
from coordinator.text.structural_tags import structural_tag
from coordinator.text.tool_formats import QWEN3_CODER, format_named
from coordinator.text.tool_forms import compiled_calls

_MAX_PROBLEM_LEN = 1_000

Kind = Literal[
    "", "json", "regex", "choice", "grammar", "json_object", "token_ids", "without",
    "structural_tag",
]  # fmt: skip


class Form(Struct, frozen=True, omit_defaults=True):
    """The form of an output. ``kind`` says what ``value`` is; "" for any text. ``functions`` are
    tools, each with ``name`` and perhaps ``parameters``. Calls of them are ``required``, or may
    accompany the text; with ``parallel`` there may be several. ``tool_format``: the name of the
    format that calls have."""

    kind: Kind = ""
    value: Any = None
    functions: list[dict[str, Any]] = []
    required: bool = False
    parallel: bool = True
    tool_format: str = QWEN3_CODER.name


class Verdict(Struct, frozen=True, omit_defaults=True):
    """The result of a check: the ``grammar``, or the ``problem`` with the form (with the tools, if
    ``of_tools``). ``warnings`` say what of the tools' schemas is not enforced. ``bug`` is the
    traceback of an unexpected exception."""

    grammar: str = ""
    problem: str = ""
    of_tools: bool = False
    warnings: list[str] = []
    bug: str = ""


def verdict(form: Form, tokenizer: LLTokenizer) -> Verdict:
    """Compile a form. This may take long or much memory, or crash the process: grammar_server.py
    limits it."""
    of_tools, warnings = False, list[str]()
    try:
        if form.kind == "structural_tag":
            grammar = structural_tag(form.value, tokenizer)
        else:
            grammar = _MAKERS[form.kind](form.value)
        if not form.functions:
            problem = grammars.problem(grammar, tokenizer)
            if problem and form.kind == "json":
                problem = _place_in_schema(_schema(form.value), tokenizer) or problem
        else:
            of_tools = True
            grammar, problem, found = compiled_calls(
                form.functions, tokenizer, format_named(form.tool_format), required=form.required,
                parallel=form.parallel, answer=grammar,
            )  # fmt: skip
            warnings = [*found]
    except BadGrammar as error:
        problem = str(error)
    except RecursionError:
        problem = "it is nested too deeply"
    if problem:
        first_lines = " ".join(problem.split("\n")[:2])
        return Verdict(problem=first_lines[:_MAX_PROBLEM_LEN], of_tools=of_tools)
    return Verdict(grammar, warnings=warnings)


def _place_in_schema(schema: Any, tokenizer: LLTokenizer) -> str:
    """The keywords that cannot be enforced, by their paths; "" if the schema has none."""
    relaxation = Relaxation("")
    relaxation.compilable(relaxation.without_keywords(schema), compiler(tokenizer))
    left_out = ", ".join(relaxation.left_out)
    return left_out and f"{left_out} cannot be enforced"


def _schema(schema: Any) -> Any:
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except msgspec.DecodeError as error:
            raise BadGrammar(f"is not JSON: {error}") from None
    return schema


_MAKERS: Mapping[str, Callable[[Any], str]] = {
    "": lambda _: "",
    "json": lambda value: grammars.json_schema(_schema(value)),
    "regex": grammars.regex,
    "choice": grammars.choice,
    "grammar": grammars.context_free,
    "token_ids": grammars.tokens,
    "without": grammars.without,
    "json_object": lambda _: grammars.json_object(),
}
