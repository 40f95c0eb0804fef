"""Long bodies: what a request may need passes, what only costs time is refused, and quickly."""

import json
import time

import pytest

from coordinator.http.body_checks import (
    READABLE_DEPTH,
    STRUCTURE_BYTES,
    check_long_fields,
    nests_too_deeply,
)
from coordinator.http.http_settings import HttpSettings
from coordinator.http.preparation import Kind, parse
from coordinator.http.prompts import read_prompts
from coordinator.http.request_schemas import CompletionRequest
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.little_work import little_work

MAX_PROMPTS = 1024
MAX_LEN = 262_144
MIB = 1 << 20


def read(body: object) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert len(content) > STRUCTURE_BYTES, "too short for limits to matter"
    kind: Kind = "detokenize" if b'"tokens"' in content[:20] else "completion"
    request = parse("chat" if b'"messages"' in content[:20] else kind, content)
    if isinstance(request, CompletionRequest):
        read_prompts(request.prompt, MAX_PROMPTS)


def message(content: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": content, **more}


CODE = 'if (a["b"] == \'{"c": [1, 2]}\') { print("\\\\"); }\n' * 100
NEEDED: dict[str, object] = {
    "a text": {"prompt": CODE * 1000},
    "texts": {"prompt": ["é🙂 " * 200] * MAX_PROMPTS},
    "ids": {"prompt": [123_456] * MAX_LEN},
    "lists of ids": {"prompt": [[7] * 500] * MAX_PROMPTS},
    "a conversation": {"messages": [message(CODE), message("no\\")] * 2000},
    "parts": {"messages": [message([{"type": "text", "text": CODE}] * 2000)]},
    "thoughts": {"messages": [message("a", role="assistant", reasoning_content=CODE * 1000)]},
    "ignored fields": {"messages": [message(CODE * 1000)], "metadata": [{"a": "b" * 50}] * 5000},
    "tokens": {"tokens": [123_456] * (2 * MAX_LEN)},
    "spread out": json.dumps({"prompt": ["a" * 1000] * MAX_PROMPTS}, indent=100).encode(),
}


@pytest.mark.parametrize("name", NEEDED)
def test_what_a_request_needs_passes(name: str) -> None:
    read(NEEDED[name])


def filled(head: bytes, unit: bytes, tail: bytes) -> bytes:
    room = 8 * MIB - len(head) - len(tail)
    return head + (unit * (room // len(unit))).rstrip(b",") + tail


USER = b'{"messages":[{"role":"user","content":"a"}],'
HEAVY = {
    "prompts of an id": (b'{"prompt":[', b"[5],", b"]}"),
    "empty prompts": (b'{"prompt":[', b'"",', b"]}"),
    "empty lists": (b'{"prompt":[', b"[],", b"]}"),
    "strings, then lists": (b'{"prompt":["",', b"[5],", b"]}"),
    "objects": (b'{"prompt":[', b"{},", b"]}"),
    "broken numbers": (b'{"prompt":[', b"1.5,", b"]}"),
    "too many ids": (b'{"prompt":[', b"5,", b"]}"),
    "too many ids in the second": (b'{"prompt":[[5],[', b"5,", b"]]}"),
    "messages": (b'{"messages":[', b'{"role":"user","content":"a"},', b"]}"),
    "silent messages": (b'{"messages":[', b'{"role":"assistant"},', b"]}"),
    "messages ending in a backslash": (
        b'{"messages":[',
        b'{"role":"user","content":"\\\\"},',
        b"]}",
    ),
    "messages without anything": (b'{"messages":[', b"{},", b"]}"),
    "a role of lists": (b'{"messages":[{"content":"a","role":[', b"[],", b"]}]}"),
    "parts": (b'{"messages":[{"role":"user","content":[', b'{"type":0},', b"]}]}"),
    "empty parts": (b'{"messages":[{"role":"user","content":[', b"{},", b"]}]}"),
    "tools": (USER + b'"tools":[', b"[],", b"]}"),
    "template variables": (USER + b'"chat_template_kwargs":{"a":[', b"[],", b"]}}"),
    "a bias": (USER + b'"logit_bias":{', b'"x":1,', b"}}"),
    "what nobody reads": (USER + b'"x":[', b"[" * 90 + b"]" * 90 + b",", b"]}"),
    "and NaN in a text": (USER + b'"y":"NaN","x":[', b"[],", b"]}"),
    "the field twice": (b'{"prompt":[', b"[5],", b'],"prompt":"a"}'),
    "tokens": (b'{"tokens":[', b"5,", b"]}"),
    "a list": (b"[", b"{},", b"]"),
    "depth": (b'{"prompt":', b"[", b""),
    "nothing": (b"", b" ", b""),
}


NAMED = {
    "empty prompts": "prompt",
    "prompts of an id": "prompt",
    "strings, then lists": "prompt",
    "too many ids": "prompt",
    "messages": "messages",
    "silent messages": "messages",
    "messages without anything": "messages[0].role",
    "empty parts": "messages[0].content",
    "tokens": "tokens",
}


@pytest.mark.parametrize("name", HEAVY)
async def test_what_only_costs_time_is_refused_quickly(
    says: Says, client_of: ClientOf, name: str
) -> None:
    client = client_of(says(max_seq_len=MAX_LEN))
    head, *_ = HEAVY[name]
    path = "/detokenize" if name == "tokens" else "/v1/completions"
    path = "/v1/chat/completions" if b'"messages"' in head else path
    content = filled(*HEAVY[name])
    with little_work(0.5):
        response = await client.post(path, content=content)
    assert response.status_code in (400, 413)
    error = response.json()["error"]
    assert error["message"]
    assert error["param"] == NAMED.get(name, error["param"])


def test_the_cap_follows_from_the_context() -> None:
    settings = HttpSettings("tiny")
    assert settings.body_cap(4096) == settings.body_cap(262_144) == 8 * MIB
    assert settings.body_cap(524_288) == 16 * MIB
    assert settings.body_cap(10**7) == 32 * MIB
    assert HttpSettings("tiny", max_body_bytes=1000).body_cap(262_144) == 1000
    assert HttpSettings("tiny", max_body_bytes=64 * MIB).body_cap(4096) == 64 * MIB


def test_the_loop_does_not_join_the_pieces_of_a_large_body() -> None:
    with little_work(0.01):
        check_long_fields([b"x" * 64 * 1024] * (256 * MIB // (64 * 1024)))


def test_brackets_in_strings_are_no_depth_and_those_side_by_side_neither() -> None:
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    assert not nests_too_deeply(nested(READABLE_DEPTH))
    assert nests_too_deeply(nested(READABLE_DEPTH + 1))
    assert nests_too_deeply(b'{"a":' * (READABLE_DEPTH + 1))
    assert not nests_too_deeply(b'["%b", "\\"%b"]' % (nested(5_000), nested(5_000)))
    assert not nests_too_deeply(b"[" + b"[{}]," * 5_000 + b"[]]")
    assert nests_too_deeply(b'["\\\\", %b]' % nested(READABLE_DEPTH))


def test_a_string_without_an_end_is_searched_once() -> None:
    begun = time.process_time()
    assert nests_too_deeply(b"[" * (READABLE_DEPTH + 1) + b'"' + b'\\"' * 30_000)
    assert time.process_time() - begun < 1.0
