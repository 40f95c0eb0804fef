"""Connections on which no whole request comes, at the coordinator's own HTTP server."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.head_deadline import MAX_HEAD_BYTES
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import Says
from tests.coordinator.served import serving

HEAD_TIMEOUT_S = 0.3
REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
JSON = b"Content-Type: application/json\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + JSON
POST += b'Content-Length: 14\r\n\r\n{"prompt":"x"'


@pytest.fixture
def gate() -> asyncio.Semaphore:
    return asyncio.Semaphore(0)


@pytest.fixture
async def port(says: Says, tokenizer: Tokenizer, gate: asyncio.Semaphore) -> AsyncIterator[int]:
    app = make_app(says("a", gate=gate), tokenizer, HttpSettings("tiny"))
    async with serving(app, head_timeout_s=HEAD_TIMEOUT_S) as (_, port):
        yield port


async def closed_after_s(reader: asyncio.StreamReader) -> float:
    began = time.monotonic()
    async with asyncio.timeout(5):
        while await reader.read(4096):
            pass
    return time.monotonic() - began


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await reader.readexactly(length)


@pytest.mark.parametrize("said", [b"", b"\r\n", b"G", REQUEST[:-2]])
async def test_a_client_that_never_finishes_a_head_is_disconnected(port: int, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    assert HEAD_TIMEOUT_S / 2 < await closed_after_s(reader) < 3
    writer.close()


@pytest.mark.parametrize("said", [b"\r\n", b"G", REQUEST[:-2]])
async def test_nor_after_an_answer(port: int, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    assert b"200 OK" in await answer(reader)
    writer.write(said)
    assert HEAD_TIMEOUT_S / 2 < await closed_after_s(reader) < 3
    writer.close()


async def test_a_client_that_drips_a_head_gets_no_longer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    closed = asyncio.create_task(closed_after_s(reader))
    for byte in REQUEST:
        writer.write(bytes([byte]))
        if (await asyncio.wait([closed], timeout=HEAD_TIMEOUT_S / 5))[0]:
            break
    assert await closed < 3
    writer.close()


@pytest.mark.parametrize("before", [b"", REQUEST])
async def test_a_head_without_end_is_not_kept(port: int, before: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if before:
        writer.write(before)
        await answer(reader)
    writer.write(b"GET /health HTTP/1.1\r\nX: " + b"x" * 16 * MAX_HEAD_BYTES)
    with pytest.raises(ConnectionResetError):  # before the deadline, with most of it unread
        await asyncio.wait_for(reader.read(), HEAD_TIMEOUT_S / 2)
    writer.close()


async def test_nor_are_trailers_without_end(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head + b"1\r\na\r\n0\r\nx: ")
    assert b"404 Not Found" in await answer(reader)
    writer.write(b"x" * 16 * MAX_HEAD_BYTES)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), HEAD_TIMEOUT_S / 2)
    writer.close()


async def test_a_body_that_comes_after_its_answer_is_read_to_its_end(port: int) -> None:
    """So that the client reads its answer, and the connection stays good."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    length = 8 * MAX_HEAD_BYTES
    writer.write(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
    assert b"404 Not Found" in await answer(reader)
    for _ in range(8):
        writer.write(b"x" * MAX_HEAD_BYTES)
        await writer.drain()
    writer.write(REQUEST)
    assert b"200 OK" in await answer(reader)
    writer.close()


async def test_a_long_head_is_read(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST[:-2] + b"X: " + b"x" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")
    assert b"200 OK" in await answer(reader)
    writer.close()


async def test_a_long_answer_and_a_pause_between_requests_close_no_connection(
    port: int, gate: asyncio.Semaphore
) -> None:
    """Half of the next head, sent while the answer runs, does not cut that off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(POST + b"}" + REQUEST[:10])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 2 * HEAD_TIMEOUT_S)
    for _ in range(9):
        gate.release()
    assert b'"text":"a"' in await answer(reader)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 2 * HEAD_TIMEOUT_S)
    writer.write(REQUEST[10:])
    assert b"200 OK" in await answer(reader)
    writer.close()
