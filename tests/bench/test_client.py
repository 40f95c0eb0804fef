"""The client against servers whose every byte is written here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bench.client import Connection, RequestFailed, at_once, one_by_one

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = b'{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, token_id: int, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"text":"{text}","token_ids":[{token_id}],"finish_reason":{finish}}}'
    return f'data: {{"choices":[{choice}],"usage":null}}\n\n'.encode()


STREAM = [
    HEAD + chunk(event("Hi", 7)),
    chunk(event(" you", 8, '"length"')),
    chunk(b'data: {"choices":[],"usage":%b}\n\n' % USAGE),
    chunk(b"data: [DONE]\n\n"),
    b"0\r\n\r\n",
]


@asynccontextmanager
async def serving(pieces: Callable[[], list[bytes]]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers every request with ``pieces``, each in a write of its own."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            requests.append(await reader.readexactly(length))
            for piece in pieces():
                writer.write(piece)
                await writer.drain()
            if not pieces()[-1].endswith(b"\r\n\r\n"):
                break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield f"http://{host}:{port}", requests


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
async def test_a_stream_however_it_is_cut(size: int) -> None:
    whole = b"".join(STREAM)
    cut = [whole[i : i + size] for i in range(0, len(whole), size)]
    async with serving(lambda: cut) as (url, requests):
        connection = Connection(url)
        completion = await connection.complete(prompt=[1, 2, 3], max_tokens=2)
        connection.close()
    assert completion.text == "Hi you"
    assert completion.token_ids == (7, 8)
    assert completion.finish_reason == "length"
    assert completion.usage["completion_tokens"] == 2
    assert len(completion.token_at_s) == 2
    assert 0 < completion.ttft_s <= completion.seconds
    assert b'"include_usage": true' in requests[0]


async def test_connections_are_kept_and_all_requests_answered() -> None:
    async with serving(lambda: STREAM) as (url, requests):
        assert len(await one_by_one(url, [{"prompt": "a"}] * 3)) == 3
        assert len(await at_once(url, [{"prompt": "b"}] * 9, concurrency=4)) == 9
    assert len(requests) == 12


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy"], "503 No: busy"),
        (STREAM[:2], "connection lost"),
        ([HEAD, chunk(b'data: {"error":"gone"}\n\n'), b"0\r\n\r\n"], "gone"),
        ([STREAM[0], b"0\r\n\r\n"], "without its end"),
    ],
)
async def test_what_is_no_completion_raises(pieces: list[bytes], message: str) -> None:
    async with serving(lambda: pieces) as (url, _):
        connection = Connection(url)
        with pytest.raises(RequestFailed, match=message):
            await connection.complete(prompt="a")
        connection.close()
