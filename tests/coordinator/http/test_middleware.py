"""Request ids, the body's cap and deadline, and our own bugs, seen as plain ASGI."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from coordinator.http.http_settings import HttpSettings
from coordinator.http.while_connected import ClientDisconnected, while_connected
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import ClientOf, FakeCore, Says
from tests.coordinator.stores import eventually

Message = MutableMapping[str, Any]


def post_scope(path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
        "headers": [(b"content-type", b"application/json"), *headers], "query_string": b"",
        "asgi": {"version": "3.0"}, "scheme": "http",
        "root_path": "", "http_version": "1.1",
    }  # fmt: skip


async def call(
    app: Any, scope: dict[str, Any], receive: Callable[[], Awaitable[Message]]
) -> tuple[int, bytes, dict[bytes, bytes]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(5):
        await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], body, dict(sent[0]["headers"])


@pytest.mark.parametrize("given", ["abc", "A-1_b.c:d/e", "x" * 128])
async def test_a_clients_id_comes_back(says: Says, client_of: ClientOf, given: str) -> None:
    client = client_of(says())
    for path in ("/health", "/nothing", "/v1/chat/completions"):
        response = await client.get(path, headers={"x-request-id": given})
        assert response.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize(
    "given",
    [[b""], [b"x" * 129], [b"a b"], [b"a\x00b"], [b"a\r\nb"], [b"\xff"], [b'"'], [b"a", b"b"]],
)
async def test_an_unsafe_or_doubled_id_is_replaced(
    says: Says, client_of: ClientOf, given: list[bytes]
) -> None:
    headers = [(b"x-request-id", value) for value in given]
    response = await client_of(says()).get("/health", headers=headers)
    (made,) = response.headers.get_list("x-request-id")
    assert made.isalnum()
    assert made.encode() not in given


async def oversized(app: Any, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes, int]:
    """Status and body of the answer to an endless upload, and how many bytes were read first."""
    num_read = read_at_answer = 0
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal num_read
        await asyncio.sleep(0)
        num_read += 300
        return {"type": "http.request", "body": b"x" * 300, "more_body": True}

    async def send(message: Message) -> None:
        nonlocal read_at_answer
        sent.append(message)
        if len(sent) == 2:
            read_at_answer = num_read

    async with asyncio.timeout(5):
        await app(post_scope("/v1/completions", headers), receive, send)
    assert dict(sent[0]["headers"])[b"connection"] == b"close"
    assert not sent[-1].get("more_body")
    return sent[0]["status"], sent[1]["body"], read_at_answer


async def test_a_declared_body_over_the_cap_is_refused_before_it_comes(
    says: Says, tokenizer: Tokenizer
) -> None:
    app = make_app(says(), tokenizer, HttpSettings("tiny"))
    headers = [(b"content-length", str(100 * 2**20).encode())]
    status, body, num_read = await oversized(app, headers)
    assert (status, num_read) == (413, 0)
    assert b'"code":"body_too_large"' in body


async def test_an_undeclared_body_is_read_up_to_the_cap(says: Says, tokenizer: Tokenizer) -> None:
    app = make_app(says(), tokenizer, HttpSettings("tiny", max_body_bytes=1000))
    status, body, num_read = await oversized(app, [])
    assert (status, num_read) == (413, 1200)
    assert b'"code":"body_too_large"' in body


@pytest.mark.parametrize("value", [b"-1", b"1e3", b"\xb2", b"9" * 5000])
async def test_a_strange_content_length(says: Says, tokenizer: Tokenizer, value: bytes) -> None:
    app = make_app(says(), tokenizer, HttpSettings("tiny"))

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}"}

    scope = post_scope("/v1/completions", [(b"content-length", value)])
    status, body, _ = await call(app, scope, receive)
    assert status in (400, 413)
    assert body.startswith(b'{"error":')


async def test_a_body_that_does_not_come(says: Says, tokenizer: Tokenizer) -> None:
    app = make_app(says(), tokenizer, HttpSettings("tiny", body_timeout_s=0.05))

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    status, body, _ = await call(app, post_scope("/v1/completions", []), receive)
    assert status == 408
    assert b"did not arrive" in body


async def test_a_client_that_leaves_before_its_body_is_whole(
    says: Says, tokenizer: Tokenizer
) -> None:
    core = says()
    app = make_app(core, tokenizer, HttpSettings("tiny"))

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    status, _, _ = await call(app, post_scope("/v1/completions", []), receive)
    assert status == 499
    assert core.streams == []


async def test_our_own_bug_is_a_500_without_details(
    tokenizer: Tokenizer, client_of: ClientOf
) -> None:
    def broken(_: object) -> list[int]:
        raise ZeroDivisionError("secret detail")

    client = client_of(FakeCore(broken))
    for body in ({"prompt": "x"}, {"prompt": "x", "stream": True}):
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "secret" not in response.text
        assert response.headers["x-request-id"]
    assert 'baton_http_responses_total{method="POST",route="/v1/completions",status="500"} 2.0' in (
        (await client.get("/metrics")).text
    )


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "no memory")],
    ids=repr,
)
async def test_without_memory_a_request_is_to_be_tried_again(
    error: Exception, client_of: ClientOf
) -> None:
    def starved(_: object) -> list[int]:
        raise error

    response = await client_of(FakeCore(starved)).post("/v1/completions", json={"prompt": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    assert response.headers["retry-after"] == "1"


async def test_a_bug_in_the_middle_of_a_stream_is_an_event(
    says: Says, tokenizer: Tokenizer, client_of: ClientOf
) -> None:
    core = FakeCore(lambda _: tokenizer.encode("a b c"))  # the fake asserts when it runs out
    response = await client_of(core).post("/v1/completions", json={"prompt": "x", "stream": True})
    assert response.status_code == 200
    *_, error, done, rest = response.text.split("\n\n")
    assert '"internal_error"' in error
    assert (done, rest) == ("data: [DONE]", "")
    assert core.outcomes == ["cancelled"]


async def test_work_is_over_before_the_departure_is_reported() -> None:
    cleaned = False
    left = asyncio.Event()

    async def work() -> None:
        nonlocal cleaned
        try:
            left.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnected):
        await while_connected(work(), receive)
    assert cleaned


@pytest.mark.parametrize(
    ("method", "path", "body", "level"),
    [
        ("GET", "/status", None, "DEBUG"),
        ("GET", "/v1/requests", None, "DEBUG"),
        ("GET", "/", None, "DEBUG"),
        ("GET", "/v1/requests/none", None, "INFO"),
        ("GET", "/nothing", None, "INFO"),
        ("POST", "/tokenize", {"prompt": "x"}, "INFO"),
        ("POST", "/v1/completions", {"prompt": "x", "temperature": -1}, "INFO"),
        ("POST", "/v1/completions", {"prompt": "x"}, "DEBUG"),
        ("POST", "/v1/completions", {"prompt": "x", "stream": True}, "DEBUG"),
    ],
)  # fmt: skip
async def test_only_what_no_other_line_tells_is_logged_at_info(
    says: Says,
    client_of: ClientOf,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    level: str,
) -> None:
    caplog.set_level("DEBUG", "coordinator")
    await client_of(says("x" * 40)).request(method, path, json=body)
    (line,) = [record for record in caplog.records if record.name == "coordinator.http.middleware"]
    assert (line.levelname, line.message) == (level, f"{method} {path}")


async def test_an_unready_service_is_no_news_to_those_that_ask_again_and_again(
    says: Says, client_of: ClientOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "coordinator")
    client = client_of(says(problems=("no live decode worker",)))
    assert (await client.get("/ready")).status_code == 503
    (line,) = [record for record in caplog.records if record.name == "coordinator.http.middleware"]
    assert line.levelname == "DEBUG"


@pytest.mark.parametrize("started", [False, True])
async def test_a_request_that_the_coordinators_end_cuts_off(
    tokenizer: Tokenizer, started: bool
) -> None:
    """As uvicorn cancels it: a 503 if nothing has left yet, and the cancellation otherwise."""
    core = FakeCore(lambda _: [5, 6, 7, 8])
    core.gate = asyncio.Semaphore(1 if started else 0)
    sent: list[Message] = []
    body = b'{"prompt": [1, 2], "max_tokens": 4, "stream": true}'
    bodies: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not bodies:
            await asyncio.Event().wait()
        return bodies.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    app = make_app(core, tokenizer, HttpSettings("tiny"))
    asking = asyncio.create_task(app(post_scope("/v1/completions", []), receive, send))
    await eventually(lambda: core.streams and bool(sent) == started)
    asking.cancel()
    await asyncio.wait([asking], timeout=5)
    assert asking.done()
    assert asking.cancelled() == started
    if not started:
        assert sent[0]["status"] == 503
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert b'"shutting_down"' in sent[1]["body"]
