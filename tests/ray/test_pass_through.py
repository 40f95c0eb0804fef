"""What is passed on between a client and a node, and what is told when the node is lost."""

import json

import pytest
from starlette.requests import Request

from coordinator.http.errors import ApiError
from deploy.ray.pass_through import last_events, request_headers, response_headers, target
from deploy.ray.records import named

LOST = ApiError(503, "lost", code="node_lost", retry_after_s=1)


def request(path: str, *, method: str = "GET", query: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    return Request({**scope, "query_string": query.encode()})


def test_path_and_query_come_as_they_were() -> None:
    assert target(request("/v1/requests", query="limit=5")) == "/v1/requests?limit=5"
    assert target(request("/v1/models/a b/c%", query="")) == "/v1/models/a%20b/c%25"


def test_the_route_prefix_is_taken_off() -> None:
    asked = request("/baton/v1/models")
    asked.scope["root_path"] = "/baton"
    assert target(asked) == "/v1/models"


def test_headers_of_a_connection_are_not_passed_on() -> None:
    asked = request("/", host="a", connection="close", authorization="Bearer k", x_session_id="s")
    assert request_headers(asked) == [("authorization", "Bearer k"), ("x-session-id", "s")]
    answered = [
        (b"Content-Type", b"text/plain"), (b"Transfer-Encoding", b"chunked"),
        (b"X-Request-Id", b"1"), (b"Date", b"now"), (b"Retry-After", b"2"),
    ]  # fmt: skip
    assert response_headers(answered, "n1") == [
        (b"content-type", b"text/plain"), (b"retry-after", b"2"), (b"x-baton-node", b"n1"),
    ]  # fmt: skip


def test_the_origin_of_its_own_page_is_not_passed_on() -> None:
    """The node has another address, and would take the page for a foreign one."""
    own = request("/", host="a:8000", origin="http://a:8000")
    assert request_headers(own) == []
    foreign = request("/", host="a:8000", origin="http://b:8000")
    assert request_headers(foreign) == [("origin", "http://b:8000")]


@pytest.mark.parametrize(
    ("path", "name", "told"),
    [
        ("/v1/chat/completions", "", LOST.body()),
        ("/v1/responses", "error", {"type": "error", "code": "node_lost", "message": "lost",
                                    "param": None}),
    ],
)  # fmt: skip
def test_a_lost_stream_ends_with_an_error(path: str, name: str, told: dict) -> None:
    events = [event for event in last_events(path, LOST).decode().split("\n\n") if event]
    lines = events[0].splitlines()
    assert lines[:-1] == ([f"event: {name}"] if name else [])
    assert json.loads(lines[-1].removeprefix("data: ")) == told
    assert events[1:] == ([] if name else ["data: [DONE]"])


def test_a_lost_stream_of_messages_ends_as_anthropics_clients_expect() -> None:
    lines = last_events("/v1/messages", LOST).decode().strip().splitlines()
    assert lines[0] == "event: error"
    error = json.loads(lines[1].removeprefix("data: "))["error"]
    assert (error["type"], error["message"]) == ("api_error", "lost")


@pytest.mark.parametrize(
    ("method", "path", "body", "found"),
    [
        ("GET", "/v1/requests/abc", b"", "/v1/requests/abc"),
        ("GET", "/v1/responses/resp_1/input_items", b"", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1", b"", "/v1/responses/resp_1"),
        ("POST", "/v1/responses", b'{"previous_response_id": "resp_1"}', "/v1/responses/resp_1"),
        ("POST", "/v1/responses", b'{"input": "a"}', None),
        ("POST", "/v1/responses", b'{"previous_response_id": "../x"}', "/v1/responses/..%2Fx"),
        ("GET", "/v1/requests", b"", None),
        ("POST", "/v1/chat/completions", b'{"previous_response_id": "resp_1"}', None),
    ],
)
def test_requests_that_name_a_record(
    method: str, path: str, body: bytes, found: str | None
) -> None:
    assert named(request(path, method=method), body) == found
