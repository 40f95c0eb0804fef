"""The dialect of a model: how its chat template writes turns, thoughts and calls of tools.

The template is asked, not the model's name: it renders a few conversations, and what they look like
says what the model was trained to write. So a fine-tuned model with another template gets the
dialect of that template.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.text.answer_parser import AnswerParser, ThoughtDivider
from coordinator.text.chat_template import ChatTemplate, TemplateRefused
from coordinator.text.thoughts import CLOSE, OPEN, Opener, ThoughtIds
from coordinator.text.tool_formats import TOOL_FORMATS, ToolFormat
from coordinator.text.tool_values import Schema
from coordinator.text.turns import TURNS, UNKNOWN, Turns

_NAME = "probe_of_the_template"
_FUNCTION = {"name": _NAME, "description": "A tool.", "parameters": {"type": "object"}}
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": _NAME, "arguments": {"value": 1}},
}
_THOUGHTLESS: Mapping[str, Any] = {"enable_thinking": False}
_NO_TOOLS = "the chat template of this model has no tools"
_QUESTION: dict[str, Any] = {"role": "user", "content": "Why?"}
_CALLING: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}


@dataclass(frozen=True)
class Dialect:
    """How one model's chats are written.

    ``header``: the end of a prompt behind which the model opens a thought, if it is the
    ``opener``. ``tools``: the format of calls; None if no request may have tools, for the reason
    ``no_tools``. ``problems`` say what of the template is not understood.
    """

    turns: Turns = UNKNOWN
    opener: Opener = Opener.NOBODY
    header: str = ""
    tools: ToolFormat | None = None
    no_tools: str = ""
    problems: tuple[str, ...] = field(default=())

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Variables of the template that a request may override. Thinking is off unless it is asked
        for, unlike in the templates of the Qwen family."""
        return _THOUGHTLESS

    @property
    def tags(self) -> frozenset[str]:
        """The tags around thoughts and calls, which parsers must see in the text of an output."""
        thoughts = () if self.opener is Opener.NOBODY else (OPEN, CLOSE)
        return frozenset((*thoughts, *(self.tools.tags if self.tools else ())))

    @property
    def tool_call_parser(self) -> str | None:
        """vLLM's name of the parser of such calls; None without tools."""
        return None if self.tools is None else self.tools.name

    @property
    def reasoning_parser(self) -> str | None:
        """vLLM's name of the parser of such thoughts; None without thoughts."""
        return None if self.opener is Opener.NOBODY else "qwen3"

    @property
    def summary(self) -> str:
        """The dialect in one line, with what was seen of the template."""
        opener = {
            Opener.PROMPT: f"opened by the prompt (it ends with {OPEN})",
            Opener.MODEL: f"opened by the model (a prompt without thinking ends with {CLOSE})",
            Opener.NOBODY: "none (no prompt has their tags)",
        }[self.opener]
        begin = f"begin with {self.turns.start}" if self.turns.start else "no known beginning"
        calls = f"{self.tools.name} (written as {self.tools.begins})" if self.tools else "none"
        calls += f" ({self.no_tools})" if self.no_tools == _NO_TOOLS else ""
        told = f"turns {self.turns.name} ({begin}), thoughts {opener}, tool calls {calls}"
        return "; ".join([told, *self.problems])

    def answer_parser(
        self, thought: ThoughtIds | None, tools: Mapping[str, Schema] | None
    ) -> AnswerParser:
        """The parser of one answer. ``thought``: the tokens around the thought that it may begin
        with. ``tools``: the parameters of each tool that may be called; None for none."""
        return AnswerParser(
            ThoughtDivider(opened=thought.start is None) if thought is not None else None,
            self.tools.parser(tools) if self.tools is not None and tools is not None else None,
        )


def dialect_of(template: ChatTemplate | None, tokens: Container[str]) -> Dialect:
    """The dialect of a template; a plain one without a template. ``tokens``: the special and added
    tokens of the vocabulary. Raises ValueError if the template renders no question."""
    if template is None:
        return Dialect(problems=("there is no chat template: only completions are served",))
    try:
        prompt = template.render([_QUESTION], variables={"enable_thinking": True})
        thoughtless = template.render([_QUESTION], variables=_THOUGHTLESS)
    except TemplateRefused as error:
        raise ValueError(f"the chat template does not render a question: {error}") from error
    problems = []
    turns = next((each for each in TURNS if each.start in tokens and each.start in prompt), UNKNOWN)
    if turns is UNKNOWN:
        problems.append("turns of this form have no boundaries for the prefix cache")
    opener = _opener(prompt, thoughtless)
    if opener is not Opener.NOBODY and not (OPEN in tokens and CLOSE in tokens):
        problems.append(f"thoughts stay in the text, since {OPEN} or {CLOSE} is no token")
        opener = Opener.NOBODY
    header = ""
    if opener is Opener.MODEL:
        question = template.render([_QUESTION], add_generation_prompt=False)
        header = prompt.removeprefix(question)
    tools, no_tools = _tools(template, tokens)
    if no_tools and no_tools != _NO_TOOLS:
        problems.append(no_tools)
    return Dialect(turns, opener, header, tools, no_tools, tuple(problems))


def _opener(prompt: str, thoughtless: str) -> Opener:
    if prompt.rstrip().endswith(OPEN):
        return Opener.PROMPT
    return Opener.MODEL if thoughtless.rstrip().endswith(CLOSE) else Opener.NOBODY


def _tools(template: ChatTemplate, tokens: Container[str]) -> tuple[ToolFormat | None, str]:
    """The format in which the template writes calls; or None and why no tools can be served."""
    try:
        told = template.render([_QUESTION], variables={"tools": _TOOLS})
    except TemplateRefused:
        told = ""
    if _NAME not in told:
        return None, _NO_TOOLS
    try:
        called = template.render([_QUESTION, _CALLING], add_generation_prompt=False)
    except TemplateRefused as error:
        return None, f"the chat template does not render a tool call: {error}"
    called = "".join(called.split())
    for each in TOOL_FORMATS:
        if each.begins.replace("NAME", _NAME) in called:
            if missing := [tag for tag in each.tags if tag not in tokens]:
                return None, f"tools of this model need the token {missing[0]}, which is missing"
            return each, ""
    known = ", ".join(each.name for each in TOOL_FORMATS)
    return None, f"the chat template writes tool calls in none of the known formats ({known})"
