"""Writes the grammar of structural tags: free text in which parts between tags have a schema. Pure.

A value is vLLM's and SGLang's: ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``.
Once the text has one of the ``triggers``, a structure whose ``begin`` starts with it must follow.
"""

import json
import re
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer
from msgspec import Struct

from coordinator.text.grammars import WHITE_SPACE, BadGrammar, check_len, quoted, schema_text

_ANY = "/(?s:.*)/"
_TAG = re.compile(r"(<[^<>\s]+>)")


class _Structure(Struct, forbid_unknown_fields=True):
    begin: str
    schema: dict[str, Any]
    end: str


class _StructuralTag(Struct, forbid_unknown_fields=True):
    structures: list[_Structure]
    triggers: list[str]
    type: str = "structural_tag"


def structural_tag(value: Any, tokenizer: LLTokenizer) -> str:
    """The grammar of structural tags, given as an object or as its JSON. Tags that are tokens of
    their own, such as ``<tool_call>``, are asked for as tokens."""
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        found = msgspec.convert(value, _StructuralTag)
    except msgspec.MsgspecError as error:
        raise BadGrammar(f"a structural tag has structures and triggers: {error}") from None
    if not found.structures or not all(found.triggers) or not found.triggers:
        raise BadGrammar("a structural tag needs structures, and triggers that are not empty")
    check_len(json.dumps(value), "the structural tag")
    return LLMatcher.grammar_from_lark("\n".join(_lines(found, tokenizer)))


def _lines(tag: _StructuralTag, tokenizer: LLTokenizer) -> list[str]:
    by_trigger: dict[str, list[_Structure]] = {}
    for structure in tag.structures:
        trigger = next((each for each in tag.triggers if structure.begin.startswith(each)), None)
        if trigger is None:
            raise BadGrammar(f"begin {quoted(structure.begin)} starts with none of the triggers")
        by_trigger.setdefault(_head(trigger, tokenizer), []).append(structure)
    tokens = {head for head in by_trigger if _is_token(head, tokenizer)}
    texts = " | ".join(quoted(head) for head in by_trigger if head not in tokens)
    groups = " | ".join(f"group_{n}" for n in range(len(by_trigger)))
    without = f" & ~({_ANY} ({texts}) {_ANY})" if texts else ""
    lines = [f"start: ({groups})* FREE", f"FREE: {_ANY}{without}"]
    for n, (head, structures) in enumerate(by_trigger.items()):
        bodies = " | ".join(_body(each, head, tokenizer) for each in structures)
        # The text before a trigger ends with it; a token is no part of any text.
        is_token = head in tokens
        begin = f": FREE {head}" if is_token else f"[lazy]: FREE {quoted(head)}"
        lines += [f"head_{n}{begin}", f"group_{n}: head_{n} ({bodies})"]
    return lines


def _head(trigger: str, tokenizer: LLTokenizer) -> str:
    """The token that ``trigger`` begins with, or all of it if it is text."""
    first, *_ = _parts(trigger, tokenizer)
    if first != trigger and not _is_token(first, tokenizer):
        raise BadGrammar(f"trigger {quoted(trigger)} has a token of the model behind its text")
    return first


def _body(structure: _Structure, head: str, tokenizer: LLTokenizer) -> str:
    schema = {**structure.schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    begin, end = (
        [part if _is_token(part, tokenizer) else quoted(part) for part in _parts(text, tokenizer)]
        for text in (structure.begin.removeprefix(head), structure.end)
    )
    return " ".join([*begin, f"%json {schema_text(schema)}", *end])


def _parts(text: str, tokenizer: LLTokenizer) -> list[str]:
    """The text, cut before and behind each tag that is a token."""
    parts = [""]
    for part in _TAG.split(text):
        if _is_token(part, tokenizer):
            parts += [part, ""]
        else:
            parts[-1] += part
    return [part for part in parts if part]


def _is_token(text: str, tokenizer: LLTokenizer) -> bool:
    """True for a special or added token of the model."""
    if not _TAG.fullmatch(text):
        return False
    ids = tokenizer.tokenize_str(text, parse_special=True)
    return len(ids) == 1 and tokenizer.is_special_token(ids[0])
