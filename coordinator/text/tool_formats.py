"""The formats in which models call tools: the parser and the grammar of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.text.call_parser import CallParser
from coordinator.text.hermes_parser import CLOSE, OPEN, HermesParser
from coordinator.text.json_call_grammars import hermes_calls, llama_calls, place_in_calls
from coordinator.text.llama_parser import LlamaParser
from coordinator.text.qwen_parser import QwenParser
from coordinator.text.tool_grammars import Place, place_of, tool_calls, unwritten
from coordinator.text.tool_values import Schema


class CallGrammar(Protocol):
    """Writes the grammar of calls, as ``tool_grammars.tool_calls`` does."""

    def __call__(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        required: bool,
        parallel: bool,
        answer: str = "",
    ) -> str: ...


@dataclass(frozen=True)
class ToolFormat:
    """One format of tool calls.

    ``name``: as vLLM's ``--tool-call-parser`` has it. ``begins``: the beginning of a call of the
    function NAME in a prompt, without white space. ``tags``: tokens that calls are made of, which
    the vocabulary must have. ``parser``: gets the schema of each function's parameters, by the
    function's name. ``place_of``: finds the tool that a line of a grammar is about. ``unwritten``:
    paths of the keywords in the schema of a function's parameters that its grammar leaves out."""

    name: str
    begins: str
    tags: tuple[str, ...]
    parser: Callable[[Mapping[str, Schema]], CallParser]
    grammar: CallGrammar
    place_of: Callable[[str, int], Place | None]
    unwritten: Callable[[Any], list[str]] = lambda _: []


QWEN3_CODER = ToolFormat(
    "qwen3_coder", "<tool_call><function=NAME>", (OPEN, CLOSE), QwenParser, tool_calls, place_of,
    unwritten,
)  # fmt: skip
HERMES = ToolFormat(
    "hermes", '<tool_call>{"name":"NAME","arguments":', (OPEN, CLOSE), HermesParser, hermes_calls,
    place_in_calls,
)  # fmt: skip
LLAMA3_JSON = ToolFormat(
    "llama3_json", '{"name":"NAME","parameters":', (), LlamaParser, llama_calls, place_in_calls
)
TOOL_FORMATS = (QWEN3_CODER, HERMES, LLAMA3_JSON)


def format_named(name: str) -> ToolFormat:
    """The format with this name. Raises KeyError."""
    return {each.name: each for each in TOOL_FORMATS}[name]
