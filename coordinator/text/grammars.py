"""Writes grammars for llguidance, which say what a request's output may be. Pure.

``problem`` says whether the compiler accepts a grammar. That takes milliseconds, and a few hundred
for the largest grammar that ``LIMITS`` let pass."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from coordinator.text.json_schemas import compilable
from transport.grammars import compiled

MAX_LEN = 256 * 1024
"""Characters of a schema, regular expression or grammar."""
MAX_STEP_S = 0.1
_NO_TOKEN = "NoExtensionBias"
WHITE_SPACE = r"[ ]?|\n[ ]{0,20}"
"""The white space between items of JSON."""


class BadGrammar(ValueError):
    """A schema or grammar that cannot be served; the message says where and why."""


def json_schema(schema: Mapping[str, Any] | bool) -> str:
    """Grammar of the JSON that a schema allows, with at most a blank or a line break between
    items."""
    if not isinstance(schema, Mapping | bool):
        raise BadGrammar("a JSON schema is an object or a boolean")
    if schema is False:
        raise BadGrammar("the JSON schema allows nothing")
    text = schema_text({} if schema is True else schema)
    check_len(text, "the JSON schema")
    try:
        return LLMatcher.grammar_from_json_schema(
            text, overrides={"whitespace_pattern": WHITE_SPACE}
        )
    except ValueError as error:
        raise BadGrammar(f"the JSON schema: {error}") from error


def json_object() -> str:
    """Grammar of any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    """Grammar of text that matches a whole regular expression (Rust's syntax, no look-around)."""
    check_len(pattern, "the regular expression")
    return LLMatcher.grammar_from_regex(pattern)


def choice(texts: Sequence[str]) -> str:
    """Grammar of one of ``texts``."""
    if not texts:
        raise BadGrammar("the list of choices is empty")
    check_len("".join(texts), "the choice")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(quoted(text) for text in texts))


def tokens(ids: Sequence[int]) -> str:
    """Grammar of at least one token, all of them among ``ids``."""
    return LLMatcher.grammar_from_lark(f"start: (<[{','.join(map(str, ids))}]>)+")


def without(texts: Sequence[str]) -> str:
    """Grammar of any text that contains none of ``texts``."""
    check_len("".join(texts), "the list of texts")
    bad = " | ".join(quoted(text) for text in texts)
    any_text = "/(?s:.*)/"
    return LLMatcher.grammar_from_lark(
        f"start: TEXT\nTEXT: {any_text} & ~({any_text} ({bad}) {any_text})"
    )


def context_free(grammar: str) -> str:
    """Grammar given in llguidance's Lark, or in GBNF, which is recognised by its ``::=``."""
    check_len(grammar, "the grammar")
    if "::=" in grammar:
        try:
            grammar = gbnf_to_lark(grammar)
        except Exception as error:  # whatever its converter stumbles over
            raise BadGrammar(f"the grammar is not valid GBNF: {error}") from error
    return LLMatcher.grammar_from_lark(grammar)


def problem(grammar: str, tokenizer: LLTokenizer) -> str:
    """Why the grammar cannot be served with this tokenizer; "" if it can. Computes the first mask,
    since what makes a grammar expensive often shows only there."""
    matcher = compiled(grammar, tokenizer)
    if matcher.is_error():
        return matcher.get_error()
    began = time.thread_time()
    matcher.compute_bitmask()
    if (spent := time.thread_time() - began) > MAX_STEP_S:
        return f"its first token alone takes {1e3 * spent:.0f} ms to find, more than 100"
    found = matcher.get_error()
    return "it allows no text, or refers to itself without end" if _NO_TOKEN in found else found


def compiler(tokenizer: LLTokenizer) -> Callable[[Mapping[str, Any]], bool]:
    """A function that says whether a JSON schema can be compiled."""
    return lambda schema: not compiled(json_schema(schema), tokenizer).is_error()


def schema_text(schema: Any) -> str:
    """The JSON of a schema, as the compiler takes it. Raises BadGrammar."""
    try:
        return json.dumps(compilable(schema))
    except RecursionError:
        raise BadGrammar("the JSON schema is nested too deeply") from None


def quoted(text: str) -> str:
    """``text`` as a string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def check_len(text: str, what: str) -> None:
    """Raises BadGrammar for a text that is longer than any grammar may be."""
    if len(text) > MAX_LEN:
        raise BadGrammar(f"{what} has {len(text)} characters, more than {MAX_LEN}")
