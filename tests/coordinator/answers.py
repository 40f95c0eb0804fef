"""Requests that generate, and their answers, checked against the schemas."""

import json
from typing import Any

import httpx
import msgspec

from coordinator.http.response_schemas import ChatCompletion, ChatCompletionChunk, Completion

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    msgspec.json.decode(response.content, type=ChatCompletion if path == CHAT else Completion)
    return answer


async def events(client: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    """The data of a stream's events; checks that nothing else is in it."""
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all(block.startswith("data: {") and "\n" not in block for block in blocks)
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
    model = ChatCompletionChunk if path == CHAT else Completion
    for chunk in chunks:
        if "error" not in chunk:
            msgspec.json.decode(json.dumps(chunk), type=model)
    return chunks


def check_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert len(response.content) < 4096
    assert response.headers["x-request-id"]
    assert set(response.json()) == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    return error
