"""Compiles the calls of tools, with what no grammar enforces left out of their schemas, unless they
are strict."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from llguidance import LLTokenizer

from coordinator.text import grammars
from coordinator.text.grammars import BadGrammar, compiler
from coordinator.text.relaxation import Relaxation
from coordinator.text.tool_formats import ToolFormat
from coordinator.text.tool_grammars import parameters_of

_AT_LINE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?(.*)")
_REGEX_ERROR = re.compile(r"^error: (.*)", re.MULTILINE)


class Calls(NamedTuple):
    """The grammar of calls. ``warnings`` name what it does not enforce, ``problem`` says why it
    cannot be served."""

    grammar: str = ""
    problem: str = ""
    warnings: Sequence[str] = ()


@dataclass
class _Tool:
    function: Mapping[str, Any]
    relaxation: Relaxation = field(default_factory=lambda: Relaxation("parameters"))

    def __post_init__(self) -> None:
        self.parameters = self.relaxation.without_keywords(self.function.get("parameters"))

    @property
    def is_strict(self) -> bool:
        return bool(self.function.get("strict"))

    @property
    def relaxed(self) -> dict[str, Any]:
        return {**self.function, "parameters": self.parameters}

    def relax(self, tokenizer: LLTokenizer) -> None:
        compiles = compiler(tokenizer)
        self.parameters = self.relaxation.compilable(self.parameters, compiles)

    def leave_out(self, form: ToolFormat) -> None:
        """Note what the format has no way to enforce. Raises BadGrammar that names the tool."""
        try:
            self.relaxation.left_out += form.unwritten(self.parameters)
        except BadGrammar as error:
            raise BadGrammar(self.named(str(error))) from None

    def check_strict(self) -> None:
        """Raises BadGrammar if something was left out of a strict tool."""
        if self.is_strict and (left_out := self.relaxation.left_out):
            what = ", ".join(left_out)
            raise BadGrammar(self.named(f"{what} cannot be enforced, as strict requires"))

    def named(self, message: str) -> str:
        return f"tool {self.function['name']!r}: {message}"


def compiled_calls(
    functions: Sequence[Mapping[str, Any]],
    tokenizer: LLTokenizer,
    form: ToolFormat,
    *,
    required: bool,
    parallel: bool,
    answer: str,
) -> Calls:
    """The grammar of calls of ``functions`` in the format ``form``; the other arguments are those
    of ``tool_grammars.tool_calls``. Raises BadGrammar that names the tool and the place in its
    schema."""
    tools = [_Tool(function) for function in functions]
    for tool in tools:
        tool.leave_out(form)
        tool.check_strict()

    def made() -> tuple[str, str]:
        given = [tool.relaxed for tool in tools]
        grammar = form.grammar(given, required=required, parallel=parallel, answer=answer)
        return grammar, grammars.problem(grammar, tokenizer)

    grammar, problem = made()
    if (number := _tool_at_fault(form, grammar, problem)) is not None:
        for tool in tools:
            if tool is tools[number] or not tool.is_strict:
                tool.relax(tokenizer)
        tools[number].check_strict()
        grammar, problem = made()
    if (number := _tool_at_fault(form, grammar, problem)) is not None:
        problem = tools[number].named(_reason(form, grammar, problem, tools[number].parameters))
    warnings = [
        tool.named(f"{path} is not enforced") for tool in tools for path in tool.relaxation.left_out
    ]
    return Calls(grammar, problem, warnings)


def _tool_at_fault(form: ToolFormat, grammar: str, problem: str) -> int | None:
    """The number of the tool whose parameters do not compile; None if the problem is another."""
    found = _AT_LINE.match(problem)
    place = form.place_of(grammar, int(found[1])) if found else None
    return place.tool if place else None


def _reason(form: ToolFormat, grammar: str, problem: str, parameters: Any) -> str:
    found = _AT_LINE.match(problem)
    assert found is not None, "the problem is at a line"
    place = form.place_of(grammar, int(found[1]))
    assert place is not None, "the line is that of a tool"
    where = "parameters"
    if place.parameter is not None:
        where += f".properties.{list(parameters_of(parameters))[place.parameter]}"
    regex = _REGEX_ERROR.search(problem)
    return f"{where}: {regex[1] if regex else found[2]}"
