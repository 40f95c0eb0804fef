"""From the items of an input to the messages of a chat."""

import json
from typing import Any

import httpx
import msgspec
import pytest

from coordinator.http.chat_schemas import MAX_MESSAGES, ChatMessage
from coordinator.http.request_fields import FieldError
from coordinator.http.responses.conversation import Earlier, fitting
from coordinator.http.responses.items import InputItem, SummaryTextPart
from coordinator.http.responses.request import ResponseRequest, check_number
from coordinator.http.responses.turn import turn_of
from tests.coordinator.answers import check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.http.test_bad_input import RAW
from tests.coordinator.little_work import little_work

CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 5}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "12"}
THOUGHT = {
    "type": "reasoning", "id": "rs_1", "summary": [],
    "content": [{"type": "reasoning_text", "text": "add them"}],
}  # fmt: skip


def messages(earlier: Earlier | None = None, /, **body: Any) -> list[dict[str, Any]]:
    """What the chat template gets."""
    request = msgspec.json.decode(json.dumps(body), type=ResponseRequest)
    chat, _ = turn_of(request, msgspec.json.encode(earlier) if earlier else b"")
    return [message.rendered() for message in chat.messages]


def test_a_text_is_a_users_message() -> None:
    assert messages(input="Hi") == [{"role": "user", "content": "Hi"}]
    told = messages(input="Hi", instructions="Be kind.")
    assert told[0] == {"role": "system", "content": "Be kind."}


def test_messages_may_have_parts_ids_and_no_type() -> None:
    found = messages(
        input=[
            {"role": "developer", "content": "Be kind."},
            {"type": "message", "role": "user", "id": "msg_1", "status": "completed",
             "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "message", "role": "assistant", "id": "msg_2", "status": "completed",
             "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []},
                         {"type": "refusal", "refusal": "d"}]},
        ]
    )  # fmt: skip
    assert found == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "cd"},
    ]


def test_calls_and_thoughts_belong_to_one_message() -> None:
    second = {**CALL, "call_id": "c2", "arguments": ""}
    text = {"role": "assistant", "content": "Let me."}
    outputs = [RESULT, {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]}]
    found = messages(
        input=[{"role": "user", "content": "?"}, THOUGHT, text, CALL, second, *outputs]
    )
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool"]
    _, assistant, first, other = found
    assert (assistant["content"], assistant["reasoning_content"]) == ("Let me.", "add them")
    assert [call["function"] for call in assistant["tool_calls"]] == [
        {"name": "add", "arguments": {"a": 5}},
        {"name": "add", "arguments": {}},
    ]
    assert (first["tool_call_id"], first["content"]) == ("c1", "12")
    assert (other["tool_call_id"], other["content"]) == ("c2", "3")


def test_a_call_after_results_is_a_new_message() -> None:
    again = {**CALL, "call_id": "c2"}
    found = messages(input=[{"role": "user", "content": "?"}, CALL, RESULT, THOUGHT, again])
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
    assert found[3]["reasoning_content"] == "add them"


def test_a_summary_is_a_thought_where_there_is_no_other() -> None:
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}
    found = messages(input=[summed, {"role": "assistant", "content": "a"}])
    assert found[0]["reasoning_content"] == "so"


def test_the_parts_of_a_summary_count() -> None:
    summary = [SummaryTextPart("so")] * MAX_MESSAGES
    check_number([InputItem(type="reasoning", summary=summary[1:])])
    with pytest.raises(FieldError, match="items and parts"):
        check_number([InputItem(type="reasoning", summary=summary)])


def test_a_call_that_was_cut_off_is_left_out() -> None:
    cut = {**CALL, "status": "incomplete", "arguments": '{"a": '}
    found = messages(
        input=[{"role": "user", "content": "?"}, cut, {"role": "user", "content": "!"}]
    )
    assert [message["role"] for message in found] == ["user", "user"]


def test_earlier_responses_come_first_and_items_may_be_named() -> None:
    earlier = msgspec.convert(
        {
            "items": [{"role": "user", "content": "?"}, CALL],
            "referenced": {"fc_1": {**CALL, "call_id": "c9"}},
        },
        Earlier,
    )
    found = messages(earlier, input=[RESULT, {"type": "item_reference", "id": "fc_1"}])
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
    assert found[3]["tool_calls"][0]["id"] == "c9"


def test_the_oldest_turns_are_left_out() -> None:
    turns = [("system", "s"), ("user", "1"), ("assistant", "2"), ("user", "3"), ("user", "4")]
    conversation = [ChatMessage(role=role, content=text) for role, text in turns]

    def longest(most: int) -> str:
        kept = fitting(conversation, lambda messages: len(messages) <= most)
        return "".join(str(message.content) for message in kept)

    assert longest(9) == "s1234"
    assert longest(3) == longest(4) == "s34"
    assert longest(2) == longest(1) == "s4"


async def test_truncation_auto_makes_a_conversation_fit(says: Says, client_of: ClientOf) -> None:
    core = says("ok")
    turns = [{"role": "user", "content": "fox " * 150} for _ in range(6)]
    body = {"input": [*turns, {"role": "user", "content": "last"}], "max_output_tokens": 20}
    client = client_of(core)
    check_error(await client.post("/v1/responses", json=body), 400, "input")
    answer = await client.post("/v1/responses", json={**body, "truncation": "auto"})
    assert answer.status_code == 200, answer.text
    assert len(core.streams[-1].spec.prompt_ids) + 20 <= 512


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
REMOTE = {"$ref": "https://example.com/schema"}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": None}),
    ("input", {"input": []}),
    ("input[0].role", {"input": [{"role": "tool", "content": "a"}]}),
    ("input[0]", {"input": [{"role": "user"}]}),
    ("input[0].type", {"input": [{"type": "web_search_call", "id": "ws_1"}]}),
    ("input[0].content", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    ("input[0]", {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}),
    ("input[0].arguments", {"input": [{**CALL, "arguments": "[1]"}]}),
    ("input[0]", {"input": [{"type": "item_reference"}]}),
    ("input", {"input": [RESULT]}),
    ("tools[0].type", {"tools": [{"type": "custom", "name": "apply_patch"}]}),
    ("tools[0]", {"tools": [{"type": "function"}]}),
    ("tools", {"tools": [TOOL, TOOL]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}),
    ("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "file_search"}}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}}),
    ("text.format.schema",
     {"text": {"format": {"type": "json_schema", "name": "a", "schema": REMOTE}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
    ("text.verbosity", {"text": {"verbosity": "low"}}),
    ("reasoning.effort", {"reasoning": {"effort": "huge"}}),
    ("reasoning.summary", {"reasoning": {"summary": "concise"}}),
    ("max_output_tokens", {"max_output_tokens": 10**6}),
    ("max_output_tokens", {"max_output_tokens": 0}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("include[0]", {"include": ["everything"]}),
    ("temperature", {"temperature": 3}),
    ("metadata", {"metadata": {str(i): "" for i in range(17)}}),
    ("truncation", {"truncation": "middle"}),
    ("background", {"background": True, "stream": True}),
    ("background", {"background": True, "store": False}),
    ("conversation", {"conversation": "conv_1"}),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("service_tier", {"service_tier": "priority"}),
    ("stream_options", {"stream_options": {"include_obfuscation": False}}),
    ("model", {"model": "other"}),
    ("previous_response_id", {"previous_response_id": "resp_" + "0" * 32}),
    ("previous_response_id", {"previous_response_id": "nonsense"}),
    ("previous_response_id", {"previous_response_id": 5}),
    ("input", {"input": "fox " * 4000}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields"), REFUSED)
async def test_what_cannot_be_had_is_refused_by_name(
    checked_client: httpx.AsyncClient, param: str, fields: dict[str, Any]
) -> None:
    body = {"input": "Hi", **fields}
    status = 404 if param == "model" else 400
    error = check_error(await checked_client.post("/v1/responses", json=body), status, param)
    assert "max_tokens" not in error["message"], "that is a field of chats"


@pytest.mark.parametrize("name", RAW)
async def test_bytes_that_are_no_request(checked_client: httpx.AsyncClient, name: str) -> None:
    with little_work():
        check_error(await checked_client.post("/v1/responses", content=RAW[name]), 400)


@pytest.mark.parametrize(
    "items",
    [[{"role": "user", "content": ""}] * 20_000, [{"role": "user", "content": []}] * 100_000,
     [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 20_000}],
     [5] * 1_000_000],
)  # fmt: skip
async def test_too_many_items_are_refused(
    checked_client: httpx.AsyncClient, items: list[Any]
) -> None:
    answer = await checked_client.post("/v1/responses", json={"input": items})
    error = check_error(answer, 400)
    assert error["param"].startswith("input")


async def test_an_item_that_is_not_stored_is_not_found(checked_client: httpx.AsyncClient) -> None:
    for name in ("msg_" + "0" * 32 + "_0", "rs_elsewhere"):
        body = {"input": [{"type": "item_reference", "id": name}]}
        error = check_error(await checked_client.post("/v1/responses", json=body), 404, "input")
        assert error["code"] == "item_not_found"


async def test_a_heavy_body_is_answered_alike(says: Says, client_of: ClientOf) -> None:
    """Beyond 64 KiB another process reads it."""
    client = client_of(says("ok"))
    tools = [{**TOOL, "name": f"f{i}", "description": "x" * 100} for i in range(600)]
    body = {"input": "Hi", "tools": tools, "metadata": {"a": "b"}, "instructions": "Be kind."}
    assert len(json.dumps(body)) > 64 * 1024
    answer = await client.post("/v1/responses", json=body)
    found = answer.json()
    assert (answer.status_code, found["metadata"]) == (200, {"a": "b"})
    assert found["instructions"] == "Be kind."
    assert len(found["tools"]) == 600
    error = await client.post("/v1/responses", json={**body, "max_output_tokens": 10**6})
    check_error(error, 400, "max_output_tokens")


# The body of a turn of Codex, shortened; what is null there is left as it is.
CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer",
         "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user",
         "content": [{"type": "input_text", "text": "List the files."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "ls"}],
         "content": None, "encrypted_content": None},
        {"type": "function_call", "id": None, "name": "shell", "call_id": "call_1",
         "arguments": "{\"command\": [\"ls\"]}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
         "parameters": {"type": "object", "properties": {"command": {"type": "array"}}}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "service_tier": None,
    "prompt_cache_key": "0197",
    "text": {"verbosity": None},
    "client_metadata": {"session_id": "1"},
}  # fmt: skip


def test_a_coding_agents_turn_is_understood() -> None:
    found = messages(**CODEX)
    roles = [message["role"] for message in found]
    assert roles == ["system", "system", "user", "assistant", "tool"]
    assert found[3]["reasoning_content"] == "ls"
    assert found[3]["tool_calls"][0]["function"]["arguments"] == {"command": ["ls"]}


async def test_openapi_tells_what_of_a_tool_may_be_left_out(
    says: Says, client_of: ClientOf
) -> None:
    schemas = (await client_of(says()).get("/openapi.json")).json()["components"]["schemas"]
    assert schemas["ResponseTool"]["required"] == ["type"]
    assert schemas["ResponseRequest"]["required"] == ["input"]
    assert "output" in schemas["ResponseBody"]["required"]
