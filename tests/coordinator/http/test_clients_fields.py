"""Small things that clients of OpenAI, vLLM, SGLang and llama.cpp send or look for."""

import json
from typing import Any

import httpx
import msgspec
import pytest

from coordinator.http.chat_schemas import ChatMessage
from coordinator.http.preparation import parse
from coordinator.http.request_schemas import ChatRequest
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, events, post
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.http.test_chat_forms import ADD, CALL

CUT = CALL[: CALL.index("so ")] + "STOP"
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 5, "wh'}}


async def test_a_call_that_a_stop_string_cuts_is_no_tool_call(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(says(CUT))
    fields = {"messages": USER, "tools": [ADD], "stop": ["STOP"]}
    answer = await post(client, CHAT, **fields)
    assert answer["choices"][0]["finish_reason"] == "stop"
    chunks = await events(client, CHAT, **fields)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    whole = await post(client_of(says(CALL)), CHAT, messages=USER, tools=[ADD])
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_message_with_a_cut_call_ends_its_turn(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(CUT.removesuffix("STOP")))
    tool = {"name": "add", "input_schema": ADD["function"]["parameters"]}
    body = {"model": "tiny", "max_tokens": 400, "messages": USER, "tools": [tool]}
    answer = (await client.post("/v1/messages", json=body)).json()
    assert answer["stop_reason"] == "end_turn"
    assert answer["content"][-1]["input"] == {"a": 5}


def test_an_earlier_call_whose_arguments_were_cut_is_taken() -> None:
    body = {"messages": [*USER, {"role": "assistant", "content": None, "tool_calls": [CALLED]}]}
    request = parse("chat", json.dumps(body).encode())
    assert isinstance(request, ChatRequest)
    (call,) = request.messages[1].rendered()["tool_calls"]
    assert call["function"]["arguments"] == {"a": 5}
    item = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": '}
    parse("response", json.dumps({"input": [{"role": "user", "content": "a"}, item]}).encode())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_continuous_usage_needs_usage(says: Says, client_of: ClientOf, path: str) -> None:
    body = {"messages": USER} if path == CHAT else {"prompt": "Hi"}
    options = {"include_usage": False, "continuous_usage_stats": True}
    chunks = await events(client_of(says()), path, stream_options=options, **body)
    assert all("usage" not in chunk for chunk in chunks)


async def test_the_tokens_of_thoughts_are_counted(says: Says, client_of: ClientOf) -> None:
    client = client_of(says("two and two\n</think>\n\nfour"))
    fields = {"messages": USER, "reasoning_effort": "low", "n": 2}
    usage = (await post(client, CHAT, **fields))["usage"]
    num = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < num < usage["completion_tokens"]
    options = {"include_usage": True}
    chunks = await events(client, CHAT, stream_options=options, **fields)
    assert chunks[-1]["usage"] == usage
    plain = (await post(client_of(says("four")), CHAT, messages=USER))["usage"]
    assert plain["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (rb"a\ud800b", rb"\ud800"),
        (rb"\uDC00", rb"\uDC00"),
        (rb"\ud83d\ude42 \ud83d", rb"\ud83d"),
        (rb"\\ud800 \ud800\n", rb"\ud800"),
    ],
)
async def test_half_of_a_surrogate_pair_is_named(
    checked_client: httpx.AsyncClient, text: bytes, half: bytes
) -> None:
    body = b'{"messages": [{"role": "user", "content": "%b"}]}' % text
    error = check_error(await checked_client.post(CHAT, content=body), 400)
    assert error["message"] == (
        f"Invalid JSON: {half.decode()} at byte {body.rindex(half)} is half of a surrogate pair, "
        "which no text can have"
    )


def test_parts_of_responses_and_refusals_are_texts() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "b"},
        {"type": "output_text", "text": "c"},
        {"type": "refusal", "refusal": "d"},
    ]
    message = msgspec.convert({"role": "assistant", "content": parts}, ChatMessage)
    assert message.rendered()["content"] == "abcd"
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}
    assert msgspec.convert(refused, ChatMessage).rendered()["content"] == "I will not."


def chosen(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_a_choice_among_some_of_the_tools(says: Says, client_of: ClientOf) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    tools = [ADD, other]
    core = says(CALL)
    client = client_of(core)
    choice = chosen("required", "add")
    answer = await post(client, CHAT, messages=USER, tools=tools, tool_choice=choice)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    constraint = core.streams[-1].spec.sampling.constraint
    assert constraint is not None
    assert "=add>" in constraint.grammar
    assert "other" not in constraint.grammar
    await post(client, CHAT, messages=USER, tools=tools, tool_choice=chosen("auto", "add"))
    assert core.streams[-1].spec.sampling.constraint is None
    for wrong in (chosen("auto", "sub"), chosen("required"), {"type": "allowed_tools"}):
        body = {"messages": USER, "tools": tools, "tool_choice": wrong}
        check_error(await client.post(CHAT, json=body), 400, "tool_choice")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_store_is_taken(says: Says, client_of: ClientOf, path: str) -> None:
    body = {"messages": USER} if path == CHAT else {"prompt": "Hi"}
    await post(client_of(says()), path, store=True, **body)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_answers_tell_a_fingerprint_and_what_stopped_them(
    says: Says, client_of: ClientOf, path: str
) -> None:
    core = says("one STOP two")
    client = client_of(core)
    body: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "Hi"}
    whole = await post(client, path, max_tokens=300, **body)
    assert whole["system_fingerprint"].startswith("fp_")
    end_of_turn = core.streams[0].script[-1]
    assert whole["choices"][0]["matched_stop"] == end_of_turn
    assert whole["choices"][0]["stop_reason"] is None
    chunks = await events(client, path, stop=["STOP"], max_tokens=300, **body)
    assert {chunk["system_fingerprint"] for chunk in chunks} == {whole["system_fingerprint"]}
    assert chunks[-1]["choices"][0]["matched_stop"] == "STOP"
    cut = await post(client, path, max_tokens=2, **body)
    assert cut["choices"][0]["matched_stop"] is None


async def test_tokens_and_texts_of_an_answer_can_be_limited(
    says: Says, client_of: ClientOf
) -> None:
    core = says("ok")
    client = client_of(core)
    for fields, text in (
        ({"allowed_token_ids": [65, 70]}, "<[65,70]>"),
        ({"bad_words": ["b/ad", "wörse"]}, "b/ad"),
    ):
        await post(client, CHAT, messages=USER, **fields)
        constraint = core.streams[-1].spec.sampling.constraint
        assert constraint is not None
        assert text in constraint.grammar
        await post(client, COMPLETIONS, prompt="Hi", **fields)
        both = {"messages": USER, "guided_regex": "a", **fields}
        check_error(await client.post(CHAT, json=both), 400, next(iter(fields)))
    for wrong in ({"allowed_token_ids": [10**6]}, {"allowed_token_ids": ["a"]}):
        check_error(await client.post(CHAT, json={"messages": USER, **wrong}), 400)
    check_error(await client.post(CHAT, json={"messages": USER, "bad_words": [""]}), 400)
    await post(client, CHAT, messages=USER, allowed_token_ids=[], bad_words=[])
    assert core.streams[-1].spec.sampling.constraint is None


async def test_a_priority_is_ignored_with_a_warning(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())
    answer = await client.post(CHAT, json={"messages": USER, "priority": -3})
    assert answer.headers["x-baton-warning"].startswith("priority is ignored: ")
    answer = await client.post(CHAT, json={"messages": USER, "priority": 0})
    assert "x-baton-warning" not in answer.headers
    answer = await client.post("/v1/responses", json={"input": "Hi", "priority": 3})
    assert answer.headers["x-baton-warning"].startswith("priority is ignored: ")
