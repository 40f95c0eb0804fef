"""Tool calls that are JSON objects (Hermes, Llama 3) are found however the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.text.hermes_parser import HermesParser
from coordinator.text.json_value import JsonValue
from coordinator.text.llama_parser import LlamaParser
from coordinator.text.tool_events import Arguments, CallBegins
from coordinator.text.tool_formats import HERMES, LLAMA3_JSON, ToolFormat
from tests.coordinator.text.test_grammars import ADD, NOW, UNIT, allows
from tests.coordinator.text.test_qwen_parser import PARAMETERS, cut
from tests.coordinator.text.test_qwen_parser import parsed_by as parsed

PLACES = st.lists(st.integers(0, 10_000), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


def hermes(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def llama(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "parameters": arguments})


@given(places=PLACES, value=OBJECTS, indent=st.sampled_from([None, 2]))
def test_hermes_calls_are_found_in_pieces_of_any_length(
    places: list[int], value: dict[str, Any], indent: int | None
) -> None:
    second = json.dumps({"name": "note", "arguments": value}, indent=indent, ensure_ascii=False)
    text = f"Let me see.\n\n{hermes('add', {'a': 5})}\n<tool_call>\n{second}\n</tool_call>\n"
    for pieces in (cut(text, places), list(text), [text]):
        parser = HermesParser(PARAMETERS)
        content, calls = parsed(parser, pieces)
        assert content == "Let me see."
        assert [name for name, _ in calls] == ["add", "note"]
        assert [json.loads(arguments) for _, arguments in calls] == [{"a": 5}, value]
        assert parser.last_is_whole


@given(
    places=PLACES, value=OBJECTS, tag=st.sampled_from(["", "<|python_tag|>", "\n<|python_tag|> "]),
    gap=st.sampled_from(["; ", "\n", ";<|python_tag|>"]),
)  # fmt: skip
def test_llama_calls_are_found_in_pieces_of_any_length(
    places: list[int], value: dict[str, Any], tag: str, gap: str
) -> None:
    text = f"{tag}{llama('add', {'a': 5})}{gap}{llama('note', value)}"
    for pieces in (cut(text, places), list(text), [text]):
        parser = LlamaParser(PARAMETERS)
        content, calls = parsed(parser, pieces)
        assert content == ""
        assert [name for name, _ in calls] == ["add", "note"]
        assert [json.loads(arguments) for _, arguments in calls] == [{"a": 5}, value]
        assert parser.last_is_whole


@pytest.mark.parametrize("parser", [HermesParser, LlamaParser])
@given(text=st.text('<tool_cal>/{}"name:, rgumets1\\u', max_size=60), places=PLACES)
def test_no_text_makes_a_parser_stumble_and_text_without_a_call_is_kept(
    parser: Any, text: str, places: list[int]
) -> None:
    whole, pieces = parsed(parser({"a": {}}), [text]), parsed(parser({"a": {}}), cut(text, places))
    assert whole == pieces
    if not whole[1] and "<tool_call>" not in text:
        assert whole == (text, [])


def test_arguments_stream_as_they_come() -> None:
    parser = HermesParser({})
    assert parser.push('<tool_call>\n{"name": "add", "argu') == []
    assert parser.push('ments": {"a"') == [CallBegins(0, "add"), Arguments(0, '{"a"')]
    assert parser.push(': "hal') == [Arguments(0, ': "hal')]
    assert parser.push("f\\") == [Arguments(0, "f")]
    assert parser.push('"</tool_call>"}') == [Arguments(0, '\\"</tool_call>"}')]
    assert parser.last_is_whole
    assert parser.push("}\n</tool_call>") == []
    parser2 = LlamaParser({"add": {}})
    assert parser2.push('{"name": "add", "parameters": {') == [
        CallBegins(0, "add"), Arguments(0, "{"),
    ]  # fmt: skip
    assert not parser2.last_is_whole
    assert parser2.push("}") == [Arguments(0, "}")]
    assert parser2.last_is_whole


@pytest.mark.parametrize(
    ("body", "name", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "add"}', "add", {"a": 1}),
        ('{"type": "function", "name": "add", "parameters": {"a": [1]}}', "add", {"a": [1]}),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', "add", {"a": 1}),
        ('{"name": "add", "arguments": null}', "add", {}),
        ('{"name": "add", "arguments": {"a": 1}', "add", {"a": 1}),  # a brace is missing
        ('{"name": "add", "arguments": {"a": "x\ny\\d\\ud800"}}', "add", {"a": "x\ny\\d\ufffd"}),
        ('{"name": "add", "arguments": {"a": "\\ud83d\\ude42"}}', "add", {"a": "🙂"}),
        ('{"name": "add"}', "add", {}),
        ('{"name": "unknown", "arguments": {}}', "unknown", {}),
    ],
)
def test_what_models_write_is_read(body: str, name: str, arguments: dict[str, Any]) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    for pieces in ([text], list(text)):
        content, calls = parsed(HermesParser({}), pieces)
        assert (content, [found for found, _ in calls]) == ("", [name])
        assert json.loads(calls[0][1]) == arguments


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 5}',
        '{"name": "add", "age": 5}',
        '{"name": "add"}',
        '{"name": "unknown", "parameters": {}}',
        '{"answer": 42}',
        'Sure: {"name": "add", "parameters": {"a": 1}}',
        "<|python_tag|>print(5)",
        '[{"name": "add", "parameters": {}}]',
        "{",
        "",
    ],
)
def test_an_answer_of_llama_that_is_no_call_stays_as_it_is(text: str) -> None:
    for pieces in ([text], list(text)):
        parser = LlamaParser(PARAMETERS)
        assert parsed(parser, pieces) == (text, [])
        assert not parser.last_is_whole


def test_text_behind_a_call_of_llama_is_content() -> None:
    text = llama("add", {"a": 1}) + "\n\nDone."
    assert parsed(LlamaParser(PARAMETERS), list(text)) == ("Done.", [("add", '{"a": 1}')])


def test_a_call_that_is_cut_off_keeps_what_it_has() -> None:
    parser = HermesParser({})
    begun = 'a <tool_call>\n{"name": "note", "arguments": {"text": "hal'
    assert parsed(parser, [begun]) == ("a", [("note", '{"text": "hal')])
    assert not parser.last_is_whole
    assert parsed(HermesParser({}), ['a <tool_call>\n{"na']) == ('a<tool_call>\n{"na', [])
    broken = '<tool_call>{"name": "add", "arguments": {"a": 1 </tool_call> and so on'
    assert parsed(HermesParser({}), [broken])[1] == [("add", '{"a": 1 ')]


def test_a_call_after_an_opening_tag_without_one_is_found() -> None:
    text = f"<tool_call>no<tool_call> {hermes('add', {'a': 5})}"
    for pieces in ([text], cut(text, [13]), list(text)):
        content, calls = parsed(HermesParser({}), pieces)
        assert (content, calls) == ("<tool_call>no<tool_call>", [("add", '{"a": 5}')])


@given(value=JSON, places=PLACES, after=st.sampled_from(["}", ", 1", "]", ""]))
def test_a_value_ends_where_json_says(value: Any, places: list[int], after: str) -> None:
    text = json.dumps(value)
    reader, found, held = JsonValue(), "", ""
    for piece in cut(text + after, places):
        taken, held = reader.take(held + piece)
        found += taken
    assert (found, held if reader.ended else after) == (text, after)


def wrapped(form: ToolFormat, name: str, arguments: Any) -> str:
    return hermes(name, arguments) if form is HERMES else llama(name, arguments)


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON], ids=lambda form: form.name)
def test_a_grammar_of_required_calls_accepts_what_the_parser_reads(form: ToolFormat) -> None:
    grammar = form.grammar([ADD, UNIT, NOW], required=True, parallel=True)
    for name, arguments in (
        ("add", {"a": 5, "b": 7}),
        ("add", {"a": 5, "b": 7, "why": "two\nlines </p> {"}),
        ("unit", {"u": "km"}),
        ("now", {}),
    ):
        text = wrapped(form, name, arguments)
        assert allows(grammar, text)
        _, calls = parsed(form.parser({name: {}}), [text])
        assert [(found, json.loads(text)) for found, text in calls] == [(name, arguments)]
    for name, arguments in (
        ("add", {"a": 5}), ("add", {"a": "x", "b": 7}), ("add", {"a": 5, "b": 100}),
        ("unit", {"u": "mm"}), ("now", {"x": 1}), ("sub", {}),
    ):  # fmt: skip
        assert not allows(grammar, wrapped(form, name, arguments))
    for text in ("", "text", "text" + wrapped(form, "now", {})):
        assert not allows(grammar, text)


def test_only_hermes_has_several_calls_under_a_grammar() -> None:
    for form, parallel in ((HERMES, True), (HERMES, False), (LLAMA3_JSON, True)):
        call = wrapped(form, "now", {})
        grammar = form.grammar([NOW], required=True, parallel=parallel)
        assert allows(grammar, call)
        assert allows(grammar, call + "\n" + call) is (parallel and form is HERMES)


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON], ids=lambda form: form.name)
def test_a_grammar_lets_text_come_instead_of_calls(form: ToolFormat) -> None:
    grammar = form.grammar([ADD], required=False, parallel=True)
    good, bad = wrapped(form, "add", {"a": 5, "b": 7}), wrapped(form, "add", {"a": 5})
    for text in ("", "It is 5.", '{"answer": 5}', good):
        assert allows(grammar, text)
    assert allows(grammar, "It is." + good), "behind text it is a call of Hermes, and text of Llama"
    assert allows(grammar, "It is." + bad) is (form is LLAMA3_JSON)
    assert not allows(grammar, bad)
    answer = 'start: "yes"'
    either = form.grammar([ADD], required=False, parallel=True, answer=answer)
    assert allows(either, good)
    assert allows(either, "yes")
    assert not allows(either, "It is 5.")
