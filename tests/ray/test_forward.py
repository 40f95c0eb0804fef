"""One request passed on to a node, with nodes that refuse, break off and wait."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from deploy.ray.fetch import new_session
from deploy.ray.forward import Forwarded
from deploy.ray.nodes import Nodes

CLOSE = b"connection: close\r\n"
HEAD = b"HTTP/1.1 200 OK\r\n" + CLOSE + b"transfer-encoding: chunked\r\ncontent-type: "
EVENTS = HEAD + b"text/event-stream; charset=utf-8\r\n\r\n"
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Handle:
    """Ray's, whose router takes the nodes in order, without those to avoid."""

    urls: list[str]
    asked: list[dict[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def choose_replica(self, **wanted: Any) -> AsyncIterator[SimpleNamespace]:
        self.asked.append(wanted)
        names = [str(n) for n in range(len(self.urls)) if str(n) not in wanted["avoid"]] or ["0"]
        url = self.urls[int(names[0])]
        yield SimpleNamespace(replica_id=names[0], replica_metadata={"url": url})


@dataclass
class Client:
    """The other end of ASGI. ``leaves`` is set when it closes the connection."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    leaves: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self) -> dict[str, str]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


@asynccontextmanager
async def node(behaviour: Behaviour) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        await behaviour(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def passed_on(handle: Handle, client: Client, path: str = "/v1/chat/completions") -> None:
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    nodes = Nodes(handle)
    async with new_session() as session, asyncio.timeout(30):
        forwarded = Forwarded(
            Request(scope), b"{}", nodes=nodes, session=session, wanted={"key": b"k"},
            release=lambda: None,
        )  # fmt: skip
        await forwarded(scope, client.receive, client.send)
    assert not nodes._open


async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS + chunk(b"data: 1\n\n"))
    writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def broken_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS + chunk(b"data: 1\n\n"))


async def test_status_headers_and_body_are_passed_on() -> None:
    async with node(events) as url:
        handle, client = Handle([url]), Client()
        await passed_on(handle, client)
    assert client.sent[0]["status"] == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in client.sent[0]["headers"]
    assert (b"x-baton-node", b"0") in client.sent[0]["headers"]
    assert client.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert handle.asked == [{"key": b"k", "avoid": (), "open": {}, "_reserve": False}]


async def test_a_node_that_refuses_the_connection_is_avoided() -> None:
    async with node(events) as gone:
        pass
    async with node(events) as url:
        handle, client = Handle([gone, url]), Client()
        await passed_on(handle, client)
    assert client.body.endswith(b"data: [DONE]\n\n")
    assert [asked["avoid"] for asked in handle.asked] == [(), ("0",)]


async def test_three_that_refuse_are_a_503_that_says_when_to_try_again() -> None:
    async with node(events) as gone:
        pass
    client = Client()
    await passed_on(Handle([gone] * 4), client)
    assert client.sent[0]["status"] == 503
    assert (b"retry-after", b"1") in client.sent[0]["headers"]
    assert "none can be reached" in json.loads(client.body)["error"]["message"]


def refusal(code: str) -> Behaviour:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"code":"%b"}}' % code.encode()
        head = b"HTTP/1.1 503 Service Unavailable\r\n%bcontent-length: %d\r\n\r\n"
        writer.write(head % (CLOSE, len(body)) + body)

    return refuses


@pytest.mark.parametrize("code", ["overloaded", "draining"])
async def test_what_a_node_does_not_accept_goes_to_another_one(code: str) -> None:
    async with node(refusal(code)) as full, node(events) as url:
        handle, client = Handle([full, url]), Client()
        await passed_on(handle, client)
    assert client.sent[0]["status"] == 200
    assert [asked["avoid"] for asked in handle.asked] == [(), ("0",)]
    assert [asked["open"] for asked in handle.asked] == [{}, {}]


@pytest.mark.parametrize(("code", "times"), [("overloaded", 2), ("worker_lost", 1)])
async def test_a_503_that_no_other_node_can_answer_is_passed_on(code: str, times: int) -> None:
    async with node(refusal(code)) as full:
        handle, client = Handle([full]), Client()
        await passed_on(handle, client)
    assert client.sent[0]["status"] == 503
    assert json.loads(client.body)["error"]["code"] == code
    assert len(handle.asked) == times


async def lost(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_a_node_lost_before_its_answer_is_replaced_by_another_one() -> None:
    async with node(lost) as gone, node(events) as url:
        client = Client()
        await passed_on(Handle([gone, url]), client)
    assert client.sent[0]["status"] == 200
    assert client.body.endswith(b"data: [DONE]\n\n")


async def test_two_nodes_lost_before_their_answers_are_a_503() -> None:
    """The request may be what kills them."""
    async with node(lost) as first, node(lost) as second, node(events) as url:
        handle, client = Handle([first, second, url]), Client()
        await passed_on(handle, client)
    assert client.sent[0]["status"] == 503
    assert json.loads(client.body)["error"]["code"] == "node_lost"
    assert len(handle.asked) == 2


async def test_a_stream_that_breaks_off_ends_with_an_error_event() -> None:
    async with node(broken_off) as url:
        client = Client()
        await passed_on(Handle([url]), client)
    first, error, done = [part for part in client.body.split(b"\n\n") if part]
    assert (first, done) == (b"data: 1", b"data: [DONE]")
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "node_lost"


async def test_a_whole_answer_that_breaks_off_stays_incomplete() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    async with node(half) as url:
        client = Client()
        with pytest.raises(Exception, match="payload is not completed"):
            await passed_on(Handle([url]), client)
    assert all(message.get("more_body", True) for message in client.sent)


async def test_when_the_client_leaves_the_nodes_connection_is_closed() -> None:
    closed = asyncio.Event()
    client = Client()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + chunk(b"data: 1\n\n"))
        client.leaves.set()
        await reader.read()  # to the end of the connection
        closed.set()

    async with node(waits) as url:
        await passed_on(Handle([url]), client)
        async with asyncio.timeout(30):
            await closed.wait()
