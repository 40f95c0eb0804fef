"""Tool calls and thoughts of each dialect, through all APIs of chats."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from llguidance import LLMatcher, LLTokenizer

from coordinator.http.http_settings import HttpSettings
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import CHAT, USER, check_error, events, post
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore
from tests.coordinator.text.test_json_calls import hermes, llama
from transport.wire.sampling import Constraint

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "why": {"type": "string"}},
    "required": ["a"],
}
FUNCTION = {"name": "add", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
ARGUMENTS = {"a": 5, "why": 'so "it" is'}
WRITERS = {"qwen2.5": hermes, "qwen3": hermes, "llama3": llama}
CALLS = {name: write("add", ARGUMENTS) for name, write in WRITERS.items()}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "tools": [TOOL]},
    RESPONSES: {"input": "Hi", "store": False, "tools": [{"type": "function", **FUNCTION}]},
    MESSAGES: {
        "messages": USER, "max_tokens": 99, "model": "tiny",
        "tools": [{"name": "add", "input_schema": SCHEMA}],
    },
}  # fmt: skip
NO_CHOICE: dict[str, Any] = {CHAT: "none", RESPONSES: "none", MESSAGES: {"type": "none"}}
MUST_CALL: dict[str, Any] = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}


class Served:
    """Apps over the tokenizer of each dialect, with a core that says what a test tells it."""

    def __init__(self, tokenizers: dict[str, Tokenizer]) -> None:
        self.tokenizers = tokenizers
        self.core = FakeCore(lambda _: [])
        self._clients: list[httpx.AsyncClient] = []

    def client(self, name: str, text: str = "ok") -> httpx.AsyncClient:
        tokenizer = self.tokenizers[name]
        ids = [*tokenizer.encode(text), tokenizer.info.eos_ids[0]]
        self.core = FakeCore(lambda _: ids)
        app = make_app(self.core, tokenizer, HttpSettings("tiny"))
        transport = httpx.ASGITransport(app)
        self._clients.append(httpx.AsyncClient(transport=transport, base_url="http://t"))
        return self._clients[-1]

    def prompt(self, name: str) -> str:
        """The prompt of the last request."""
        ids = self.core.streams[-1].spec.prompt_ids
        return self.tokenizers[name].decode(ids, skip_special_tokens=False)

    def constraint(self) -> Constraint:
        """The constraint of the last request."""
        found = self.core.streams[-1].spec.sampling.constraint
        assert found is not None
        return found

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


@pytest.fixture
async def served(tokenizers: dict[str, Tokenizer]) -> AsyncIterator[Served]:
    served = Served(tokenizers)
    yield served
    await served.close()


async def sent(client: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    answer = await client.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def call_in(path: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the only call in an answer."""
    if path == CHAT:
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        return call["function"]["name"], json.loads(call["function"]["arguments"])
    if path == RESPONSES:
        (item,) = body["output"]
        assert item["type"] == "function_call"
        return item["name"], json.loads(item["arguments"])
    (block,) = body["content"]
    assert body["stop_reason"] == "tool_use"
    return block["name"], block["input"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_is_found_in_every_api(served: Served, name: str, path: str) -> None:
    body = await sent(served.client(name, CALLS[name]), path)
    assert call_in(path, body) == ("add", ARGUMENTS)
    assert '"name": "add"' in served.prompt(name)


@pytest.mark.parametrize("name", CALLS)
async def test_arguments_stream_as_they_come(served: Served, name: str) -> None:
    client = served.client(name, CALLS[name])
    deltas = [
        call
        for chunk in await events(client, CHAT, **BODIES[CHAT])
        for call in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert [call["function"].get("name") for call in deltas if "id" in call] == ["add"]
    pieces = [call["function"]["arguments"] for call in deltas]
    assert json.loads("".join(pieces)) == ARGUMENTS
    assert len([piece for piece in pieces if piece]) > 10


async def test_several_calls_of_hermes(served: Served) -> None:
    text = f"Two.\n{hermes('add', {'a': 1})}\n{hermes('add', {'a': 2})}"
    answer = await post(served.client("qwen2.5", text), CHAT, **BODIES[CHAT])
    message = answer["choices"][0]["message"]
    assert message["content"] == "Two."
    assert [json.loads(each["function"]["arguments"]) for each in message["tool_calls"]] == [
        {"a": 1}, {"a": 2},
    ]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_and_its_result_are_in_the_next_prompt(served: Served, name: str) -> None:
    call = {"id": "c", "type": "function"}
    call["function"] = {"name": "add", "arguments": '{"a": 5}'}  # type: ignore[assignment]
    talk = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "fifty-nine"},
    ]
    await post(served.client(name), CHAT, messages=talk, tools=[TOOL])
    prompt = served.prompt(name)
    assert WRITERS[name]("add", {"a": 5}) in prompt
    assert "fifty-nine" in prompt


def allowed(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    vocabulary = LLTokenizer((tokenizer.folder / "tokenizer.json").read_text())
    matcher = LLMatcher(vocabulary, grammar)
    ids = vocabulary.tokenize_str(text, parse_special=True)
    return matcher.validate_tokens(ids) == len(ids) and (
        matcher.consume_tokens(ids) and matcher.is_accepting()
    )


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ["qwen2.5", "llama3"])
async def test_a_required_call_is_enforced_as_the_template_writes_it(
    served: Served, name: str, path: str
) -> None:
    body = await sent(served.client(name, CALLS[name]), path, tool_choice=MUST_CALL[path])
    assert call_in(path, body) == ("add", ARGUMENTS)
    tokenizer, grammar = served.tokenizers[name], served.constraint().grammar
    write = WRITERS[name]
    assert allowed(tokenizer, grammar, CALLS[name])
    for text in ("five", write("add", {"why": ""}), write("add", {"a": "x"}), write("sub", {})):
        assert not allowed(tokenizer, grammar, text)


@pytest.mark.parametrize("name", ["qwen2.5", "llama3"])
async def test_strict_named_and_single_calls_are_enforced(served: Served, name: str) -> None:
    tokenizer, write = served.tokenizers[name], WRITERS[name]
    strict = {"type": "function", "function": {**FUNCTION, "strict": True}}
    one = {"type": "function", "function": {"name": "add"}}
    text = {"required": False, "two": False}
    for fields, expected in (
        ({"tools": [strict]}, {"required": True, "two": name == "qwen2.5"}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"required": True, "two": False}),
        ({"tools": [TOOL], "tool_choice": one}, text),
    ):
        await post(served.client(name), CHAT, messages=USER, **fields)
        grammar = served.constraint().grammar
        assert allowed(tokenizer, grammar, write("add", ARGUMENTS))
        assert not allowed(tokenizer, grammar, write("add", {"a": "x"}))
        two = f"{CALLS[name]}\n{CALLS[name]}"
        assert allowed(tokenizer, grammar, "It is five.") is expected["required"]
        assert allowed(tokenizer, grammar, two) is expected["two"]


async def test_a_schema_that_cannot_be_enforced_names_its_tool(served: Served) -> None:
    remote = {"$ref": "https://example.com/schema"}
    tool = {"name": "far", "strict": True, "parameters": {"properties": {"x": remote}}}
    body = {"messages": USER, "tools": [TOOL, {"type": "function", "function": tool}]}
    for name in ("qwen2.5", "llama3"):
        answer = await served.client(name).post(CHAT, json=body)
        assert "tool 'far'" in check_error(answer, 400, "tools")["message"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("name", "reason"), [("gemma3", "has no tools"), ("other", "none of the known formats")]
)
async def test_tools_that_the_template_cannot_show_are_refused(
    served: Served, name: str, reason: str, path: str
) -> None:
    client = served.client(name)
    refused = await client.post(path, json=BODIES[path])
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert reason in error["message"]
    assert "set tool_choice to none" in error["message"]
    if path == CHAT:
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert served.core.streams == []
    await sent(client, path, tool_choice=NO_CHOICE[path])
    await sent(client, path, tools=[])
    assert "add" not in served.prompt(name)
    for lookup, body in (
        ("/tokenize", {"messages": USER, "tools": [TOOL]}),
        ("/v1/messages/count_tokens", BODIES[MESSAGES]),
    ):
        assert (await client.post(lookup, json=body)).status_code == 400


THINKING: dict[str, dict[str, Any]] = {
    CHAT: {"reasoning_effort": "high"},
    RESPONSES: {"reasoning": {"effort": "high"}},
    MESSAGES: {"thinking": {"type": "adaptive"}},
}


def divided(path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The thought and the text of an answer."""
    if path == CHAT:
        message = body["choices"][0]["message"]
        return message.get("reasoning_content", ""), message["content"]
    if path == RESPONSES:
        items = {item["type"]: item["content"][0]["text"] for item in body["output"]}
        return items.get("reasoning", ""), items.get("message", "")
    blocks = {block["type"]: block for block in body["content"]}
    thought = blocks["thinking"]["thinking"] if "thinking" in blocks else ""
    return thought, blocks["text"]["text"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_thought_that_the_model_opens_is_told_apart(served: Served, path: str) -> None:
    text = "<think>\ntwo and two\n</think>\n\nfour"
    body = await sent(served.client("qwen3", text), path, tools=[], **THINKING[path])
    assert divided(path, body) == ("two and two", "four")
    assert served.prompt("qwen3").endswith("<|im_start|>assistant\n")
    num_thought = len(served.tokenizers["qwen3"].encode("<think>\ntwo and two\n</think>"))
    if path == CHAT:
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == num_thought
    if path == RESPONSES:
        assert body["usage"]["output_tokens_details"]["reasoning_tokens"] == num_thought
    body = await sent(served.client("qwen3", "four"), path, tools=[], **THINKING[path])
    assert divided(path, body) == ("", "four"), "it may as well not think"
    body = await sent(served.client("qwen3", "four"), path, tools=[])
    assert divided(path, body) == ("", "four")
    assert served.prompt("qwen3").endswith("assistant\n<think>\n\n</think>\n\n")


async def test_a_thought_of_qwen3_streams(served: Served) -> None:
    text = f"<think>\nadd them\n</think>\n\n{CALLS['qwen3']}"
    client = served.client("qwen3", text)
    chunks = await events(client, CHAT, **BODIES[CHAT], **THINKING[CHAT])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "add them"
    assert not any(delta.get("content") for delta in deltas)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_what_is_constrained_begins_behind_an_opened_thought(served: Served) -> None:
    """The grammar begins where the thought ends, so the thought must have a beginning."""
    tokenizer = served.tokenizers["qwen3"]
    (end,) = tokenizer.encode("</think>")
    for fields in ({"guided_choice": ["yes"]}, {"thinking_token_budget": 9}):
        client = served.client("qwen3", "hm\n</think>\n\nyes")
        answer = await post(client, CHAT, messages=USER, **THINKING[CHAT], **fields)
        assert served.prompt("qwen3").endswith("<|im_start|>assistant\n<think>\n")
        assert served.constraint().thought_end == end
        assert divided(CHAT, answer) == ("hm", "yes")
    await post(served.client("qwen3", "yes"), CHAT, messages=USER, guided_choice=["yes"])
    assert served.constraint().thought_end is None


async def test_a_model_without_thoughts_warns_of_it(served: Served) -> None:
    for name, warns in (("llama3", True), ("qwen3", False)):
        for path in BODIES:
            body = {**BODIES[path], "tools": [], **THINKING[path]}
            answer = await served.client(name, "four").post(path, json=body)
            assert answer.status_code == 200
            assert ("has none" in answer.headers.get("x-baton-warning", "")) is warns
            assert divided(path, answer.json()) == ("", "four")


async def test_the_server_tells_its_dialect(served: Served) -> None:
    for name, expected in (
        ("qwen3", ("hermes", "qwen3")), ("llama3", ("llama3_json", None)), ("gemma3", (None, None)),
    ):  # fmt: skip
        info = (await served.client(name).get("/server_info")).json()
        assert (info["tool_call_parser"], info["reasoning_parser"]) == expected
