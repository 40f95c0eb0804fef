"""A checkpoint's chat template, in the environment that transformers gives it.

The template comes with the checkpoint and is not trusted: it runs in Jinja's immutable sandbox.
Source of the extras: transformers ``utils/chat_template_utils.py``.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from transport.checkpoint_folder import TOKENIZER_CONFIG, read_json

_END = "\N{OBJECT REPLACEMENT CHARACTER}end of the last message\N{OBJECT REPLACEMENT CHARACTER}"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class TemplateRefused(Exception):
    """The template does not accept this conversation; the message is the template's own."""


class ChatTemplate:
    """Renders conversations to prompt text."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ValueError when ``source`` is not a template."""
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template does not parse: {error}") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def read(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a checkpoint folder; None when it has none (a base model)."""
        config = read_json(folder / TOKENIZER_CONFIG, required=False)
        file = folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        if isinstance(source, list):
            source = next((t["template"] for t in source if t.get("name") == "default"), None)
        if not source:
            return None
        tokens = {name: _text(config, name) for name in _SPECIAL_TOKENS}
        return cls(source, {name: text for name, text in tokens.items() if text})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        continue_final: bool = False,
    ) -> str:
        """The prompt text; ``variables`` override everything but the messages. ``continue_final``:
        it ends where the content of the last message ends.

        Raises TemplateRefused, also for what the template cannot digest.
        """
        if continue_final:
            *before, last = messages
            messages = [*before, {**last, "content": last["content"] + _END}]
            add_generation_prompt = False
        given = {**self._special_tokens, **(variables or {})}
        given |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._template.render(given)
        except Exception as error:  # the template ran on the request's data: its fault, not ours
            raise TemplateRefused(str(error)) from error
        if not continue_final:
            return text
        text, found, _ = text.rpartition(_END)
        if not found:
            raise TemplateRefused("the last message's content is not in the prompt")
        return text


class _Generation(Extension):
    """``{% generation %}`` marks answers for training; here it renders what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _text(config: Mapping[str, Any], name: str) -> str:
    token = config.get(name)
    return str(token.get("content", "")) if isinstance(token, dict) else token or ""


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
