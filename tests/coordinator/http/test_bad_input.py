"""Everything a client can get wrong: a quick 4xx of the right shape, and the service goes on."""

from typing import Any

import httpx
import pytest

from coordinator.http.body_checks import READABLE_DEPTH
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.little_work import little_work

CALLED = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
RAW = {
    "empty": b"",
    "malformed": b'{"messages": [}',
    "cut off": b'{"messages": [{"role": "user", "content": "a',
    "trailing": b"{} {}",
    "not an object": b"[]",
    "a string": b'"hello"',
    "null": b"null",
    "NaN temperature": b'{"messages": [{"role":"user","content":"a"}], "temperature": NaN}',
    "Infinity": b'{"messages": [{"role":"user","content":"a"}], "top_p": Infinity}',
    "overflow to infinity": b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}',
    "NaN where nobody looks": b'{"messages":[{"role":"user","content":"a"}],"metadata":[NaN]}',
    "invalid UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "overlong UTF-8": b'{"messages": [{"role": "user", "content": "\xc0\x80"}]}',
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "lone low surrogate": b'{"messages": [{"role": "user", "content": "\\udc00x"}]}',
    "surrogate in a stop": b'{"messages":[{"role":"user","content":"a"}],"stop":"\\ud800"}',
    "surrogate in a key": b'{"messages":[{"role":"user","content":"a"}],"\\ud800":1}',
    "deep list": b'{"messages":' + b"[" * 100_000,
    "deep balanced": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"a":' * 100_000,
    "a number of 100,000 digits": b'{"n":' + b"1" * 100_000 + b"}",
    "UTF-16": '{"messages": []}'.encode("utf-16"),
    "compressed": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("name", RAW)
async def test_bytes_that_are_no_request(checked_client: httpx.AsyncClient, name: str) -> None:
    with little_work():
        response = await checked_client.post(CHAT, content=RAW[name])
    check_error(response, 400)


DEEP = b"[" * 300_000 + b"]" * 300_000


@pytest.mark.parametrize("size", ["small", "above 512 KiB", "above 2 MiB"])
@pytest.mark.parametrize(
    "path",
    [
        CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
        "/tokenize", "/detokenize",
    ],
)  # fmt: skip
async def test_a_body_that_nests_deeply_is_a_400_that_names_the_depth(
    checked_client: httpx.AsyncClient, path: str, size: str
) -> None:
    deep = {"small": DEEP[295_000:305_000], "above 512 KiB": DEEP}.get(size, DEEP + b" " * 2**21)
    for field in (b"zz", b"prompt", b"messages", b"tools"):
        response = await checked_client.post(path, content=b'{"%b":%b}' % (field, deep))
        assert response.status_code == 400
    response = await checked_client.post(path, content=b'{"zz":%b}' % deep)
    assert f"nested more than {READABLE_DEPTH} deep" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"])
async def test_a_body_of_the_depth_that_is_named_is_read(
    checked_client: httpx.AsyncClient, path: str
) -> None:
    """It lacks fields that are required: the error is about these."""
    deep = b"[" * (READABLE_DEPTH - 1) + b"]" * (READABLE_DEPTH - 1)
    for content in (b'{"zz":%b}' % deep, b'{"zz":%b}%b' % (deep, b" " * 600_000)):
        response = await checked_client.post(path, content=content)
        assert response.status_code in (400, 413)
        assert "nested" not in response.json()["error"]["message"]


async def test_nan_inside_a_string_is_just_text(says: Says, client_of: ClientOf) -> None:
    content = [{"role": "user", "content": 'NaN and "Infinity"'}]
    response = await client_of(says()).post(CHAT, json={"messages": content})
    assert response.status_code == 200


FIELDS: list[tuple[str, Any]] = [
    ("messages", []),
    ("messages", "hello"),
    ("messages", {}),
    ("messages", None),
    ("messages[0]", [1]),
    ("messages[0].role", [{"content": "a"}]),
    ("messages[0].role", [{"role": "wizard", "content": "a"}]),
    ("messages[0].role", [{"role": 5, "content": "a"}]),
    ("messages[0].role", [{"role": "function", "content": "a"}]),
    ("messages[0]", [{"role": "tool"}]),
    ("messages[0].tool_calls", [{"role": "user", "content": "a", "tool_calls": [CALLED]}]),
    (
        "messages[0].tool_calls[0].function.arguments",
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
    ),
    ("messages[0]", [{"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": 5}]),
    ("messages[0].content", [{"role": "user", "content": [5]}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "text"}]}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ("messages[0].tool_calls[0].function", [{"role": "assistant", "tool_calls": [{"id": "1"}]}]),
    ("messages", [{"role": "system", "content": "alone"}, {"role": "tool", "content": "a"}]),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 10**9),
    ("max_tokens", 10**100),
    ("max_tokens", "5"),
    ("max_tokens", 5.5),
    ("max_tokens", 1e300),
    ("max_tokens", True),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", 10**9),
    ("min_tokens", -1),
    ("min_tokens", 10**6),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("top_p", -0.1),
    ("top_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -1),
    ("min_p", 2),
    ("seed", 2**63),
    ("seed", "x"),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("n", 0),
    ("n", 10**9),
    ("n", 129),
    ("best_of", 4),
    ("stop", 5),
    ("stop[0]", ""),
    ("stop", ["x"] * 10_000),
    ("stop", ["x" * 2000]),
    ("stop[1]", ["a", ""]),
    ("stop[0]", [5]),
    ("stop_token_ids", "5"),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [10**30]),
    ("stop_token_ids[0]", [True]),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"100000": 1}),
    ("logit_bias", [1]),
    ("logit_bias.x", {"x": 1}),
    ("logit_bias.5", {"5": 101}),
    ("logit_bias.5", {"5": "a"}),
    ("logprobs", 3),
    ("top_logprobs", 21),
    ("top_logprobs", -1),
    ("top_logprobs", 3),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("stream_options", "usage"),
    ("chat_template_kwargs", "x"),
    ("ignore_eos", 1),
    ("return_token_ids", "yes"),
    ("model", 5),
    ("request_id", "a\n"),
    ("tools[0].function.name", [{"type": "function", "function": {"name": "f\n"}}]),
]


@pytest.mark.parametrize(("param", "value"), FIELDS)
async def test_a_wrong_field_is_named(
    checked_client: httpx.AsyncClient, param: str, value: object
) -> None:
    field = param.partition("[")[0].partition(".")[0]
    with little_work():
        response = await checked_client.post(CHAT, json={"messages": USER, field: value})
    error = check_error(response, 400, param)
    assert error["type"] == "invalid_request_error"


LATER: list[tuple[str, str, Any]] = [
    (CHAT, "functions", [{"name": "f"}]),
    (CHAT, "messages[0].audio", [{"role": "assistant", "content": "a", "audio": {"id": "x"}}]),
    (CHAT, "audio", {"voice": "alloy"}),
    (CHAT, "modalities", ["text", "audio"]),
    (CHAT, "echo", True),
    (COMPLETIONS, "suffix", "end"),
]


@pytest.mark.parametrize(("path", "param", "value"), LATER)
async def test_what_is_not_supported_yet_is_refused_by_name(
    checked_client: httpx.AsyncClient, path: str, param: str, value: object
) -> None:
    body = {"messages": USER} if path == CHAT else {"prompt": "a"}
    field = param.partition("[")[0]
    response = await checked_client.post(path, json={**body, field: value})
    assert check_error(response, 400, param)["code"] == "unsupported_parameter"


async def test_harmless_defaults_pass(says: Says, client_of: ClientOf) -> None:
    body = {
        "messages": USER, "tools": None, "tool_choice": "none", "functions": [],
        "response_format": {"type": "text"}, "modalities": ["text"], "prompt_logprobs": None,
        "priority": 0, "n": None, "best_of": 1, "stop": None, "logit_bias": None, "user": "me",
        "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "request_id": "abc",
        "parallel_tool_calls": True, "unknown": [1], "stream": False, "stream_options": None,
        "echo": False, "top_logprobs": 0, "logprobs": False, "seed": None, "stop_token_ids": [],
    }  # fmt: skip
    response = await client_of(says()).post(CHAT, json=body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_an_unknown_model(checked_client: httpx.AsyncClient, path: str) -> None:
    body = {"messages": USER, "prompt": "a", "tokens": [1], "model": "gpt-9" + "x" * 10_000}
    if path == "/tokenize":
        del body["messages"]
    error = check_error(await checked_client.post(path, json=body), 404, "model")
    assert error["code"] == "model_not_found"


async def test_long_input_is_echoed_only_in_part(checked_client: httpx.AsyncClient) -> None:
    evil = '\x00\u202e🙂\\"' * 5000
    check_error(
        await checked_client.post(CHAT, json={"messages": USER, "model": evil}), 404, "model"
    )
    body = {"messages": USER, "logit_bias": {evil: 1}}
    check_error(await checked_client.post(CHAT, json=body), 400)


async def test_template_variables_cannot_break_the_service(
    checked_client: httpx.AsyncClient,
) -> None:
    roles = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    error = check_error(await checked_client.post(CHAT, json={"messages": roles}), 400, "messages")
    assert error["code"] == "template_refused"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing/here", 404),
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/other/model", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("BREW", "/health", 405),
    ],
)
async def test_unknown_paths_and_methods(
    checked_client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await checked_client.request(method, path)
    check_error(response, status)
    assert ("allow" in response.headers) == (status == 405)
