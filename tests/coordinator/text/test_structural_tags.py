"""Structural tags: free text in which what stands between tags fits a schema."""

import json
from typing import Any

import pytest

from coordinator.text.forms import Form, verdict
from coordinator.text.grammars import BadGrammar
from coordinator.text.structural_tags import structural_tag
from tests.coordinator.answers import CHAT, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.text.test_grammars import TOKENIZER, allows

A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
     "additionalProperties": False}  # fmt: skip
T = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"],
     "additionalProperties": False}  # fmt: skip
TEXT_TAGS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=add>", "schema": A, "end": "</function>"},
        {"begin": "<function=say>", "schema": T, "end": "</function>"},
    ],
    "triggers": ["<function="],
}
TOKEN_TAGS = {
    "structures": [
        {"begin": "<tool_call>\n<function=a>", "schema": A, "end": "</function></tool_call>"},
        {"begin": "[x]", "schema": T, "end": ""},
    ],
    "triggers": ["<tool_call>\n<function=", "[x"],
}


@pytest.mark.parametrize(
    ("tags", "text", "allowed"),
    [
        (TEXT_TAGS, "plain text, a < b, <func", True),
        (TEXT_TAGS, 'So: <function=add>{"a": 5}</function> and then', True),
        (TEXT_TAGS, '<function=say>{"t": "hi"}</function><function=add>{"a":1}</function>', True),
        (TEXT_TAGS, '<function=add>{"a": "no"}</function>', False),
        (TEXT_TAGS, "<function=other>{}</function>", False),
        (TEXT_TAGS, "<function=", False),
        (TEXT_TAGS, '<function=add>{"a": 5} and then', False),
        (TOKEN_TAGS, 'hm <tool_call>\n<function=a>{"a": 1}</function></tool_call> [x]{"t": ""}!',
         True),
        (TOKEN_TAGS, '<tool_call>\n<function=b>{"a": 1}</function></tool_call>', False),
        (TOKEN_TAGS, "[x] y", False),
        (TOKEN_TAGS, "no", True),
    ],
)  # fmt: skip
def test_a_trigger_is_followed_by_a_structure(
    tags: dict[str, Any], text: str, allowed: bool
) -> None:
    assert allows(structural_tag(tags, TOKENIZER), text) is allowed
    assert allows(structural_tag(json.dumps(tags), TOKENIZER), text) is allowed


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "structures and triggers"),
        ({"format": {"type": "triggered_tags"}}, "structures and triggers"),
        ({"structures": [], "triggers": ["<"]}, "needs structures"),
        ({"structures": [{"begin": "<a", "schema": {}, "end": ""}], "triggers": [""]}, "triggers"),
        ({"structures": [{"begin": "<a", "schema": {}, "end": ""}], "triggers": ["<b"]},
         'begin "<a" starts with none of the triggers'),
    ],
)  # fmt: skip
def test_what_is_no_structural_tag_is_refused(value: Any, said: str) -> None:
    with pytest.raises(BadGrammar, match=said):
        structural_tag(value, TOKENIZER)
    assert said in verdict(Form("structural_tag", value), TOKENIZER).problem


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": TEXT_TAGS},
        {"structured_outputs": {"structural_tag": json.dumps(TEXT_TAGS)}},
        {"structural_tag": json.dumps(TEXT_TAGS)},
    ],
)
async def test_each_server_s_field_is_honoured(
    fields: dict[str, Any], says: Says, client_of: ClientOf
) -> None:
    core = says("Hello")
    answer = await client_of(core).post(CHAT, json={"messages": USER, **fields})
    assert answer.status_code == 200, answer.text
    constraint = core.streams[0].spec.sampling.constraint
    assert constraint is not None
    assert "<function=" in constraint.grammar


async def test_a_wrong_one_is_named(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())
    body = {"messages": USER, "structural_tag": "{}"}
    check_error(await client.post(CHAT, json=body), 400, "structural_tag")
