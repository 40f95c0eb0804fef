"""Which requests go to the same node."""

import json

import pytest

from deploy.ray.conversation import conversation_key, previous_response

LONG = "The manual says: " + "x" * 4096
QUESTION = {"role": "user", "content": "How many shells?"}


def chat(*messages: dict, **more: object) -> bytes:
    return conversation_key({}, json.dumps({"messages": messages, **more}).encode())


def test_the_turns_of_a_chat_have_one_key() -> None:
    system = {"role": "system", "content": LONG}
    turns = [QUESTION, {"role": "assistant", "content": "48"}, {"role": "user", "content": "Sure?"}]
    keys = {chat(system, *turns[:count], max_tokens=count) for count in (1, 2, 3)}
    assert len(keys) == 1
    assert len(keys.pop()) == 16


def test_conversations_that_share_a_system_prompt_have_keys_of_their_own() -> None:
    system = {"role": "system", "content": LONG}
    assert chat(system, QUESTION) != chat(system, {"role": "user", "content": "How many cups?"})
    assert chat(system, QUESTION) != chat({"role": "system", "content": "Be brief."}, QUESTION)
    assert chat(QUESTION, tools=[{"name": "add"}]) != chat(QUESTION)


def test_prompts_that_begin_with_one_document_share_a_key() -> None:
    first, second = ({"role": "user", "content": LONG + ending} for ending in ("Who?", "When?"))
    assert chat(first) == chat(second)
    texts = [json.dumps({"prompt": LONG + ending}).encode() for ending in ("Who?", "When?")]
    assert conversation_key({}, texts[0]) == conversation_key({}, texts[1]) != b""


@pytest.mark.parametrize(
    "body",
    [
        {"system": "Be brief.", "messages": [QUESTION]},
        {"instructions": "Be brief.", "input": "How many shells?"},
        {"instructions": "Be brief.", "input": [QUESTION]},
        {"prompt": [1, 2, 3]},
        {"messages": [{"role": "system", "content": "alone"}]},
    ],
)
def test_every_api_has_a_key(body: dict) -> None:
    key = conversation_key({}, json.dumps(body).encode())
    assert len(key) == 16
    assert key == conversation_key({}, json.dumps(body | {"temperature": 0}).encode())


def test_a_named_session_is_the_key_whatever_the_prompt_is() -> None:
    bodies = [json.dumps({"prompt": text}).encode() for text in ("one", "two")]
    by_header = {conversation_key({"x-session-id": "s"}, body) for body in bodies}
    named = [{"prompt": text, "prompt_cache_key": "s"} for text in ("one", "two")]
    by_field = {conversation_key({}, json.dumps(body).encode()) for body in named}
    assert by_header == by_field
    assert len(by_header) == 1
    assert by_header != {conversation_key({"x-session-id": "other"}, bodies[0])}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"messages": ', b"\xff", b'{"model":1}']
)
def test_what_has_no_prompt_has_no_key(body: bytes) -> None:
    assert conversation_key({}, body) == b""


def test_the_earlier_response_is_found() -> None:
    assert previous_response(b'{"previous_response_id": "resp_1", "input": "a"}') == "resp_1"
    assert previous_response(b'{"input": "a"}') is None
    assert previous_response(b"{") is None
