"""Clients that are old, ask for another protocol, or take nothing, at the coordinator's server."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest

from coordinator.http.http_settings import HttpSettings
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import Says
from tests.coordinator.served import post, serving

BODY = b'{"prompt": "x"}'
UPGRADE = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: "


@pytest.fixture
async def port(says: Says, tokenizer: Tokenizer) -> AsyncIterator[int]:
    app = make_app(says("one two"), tokenizer, HttpSettings("tiny"))
    async with serving(app) as (_, port):
        yield port


async def exchange(port: int, said: bytes) -> tuple[bytes, bytes]:
    """Head and all that follows it until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(5):
        answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower(), body


# ---- HTTP/1.0


async def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(port: int) -> None:
    said = post({"prompt": "x", "stream": True}, version=b"1.0")
    head, body = await exchange(port, said)
    assert head.startswith(b"http/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"])
async def test_an_answer_to_http_1_0_has_its_length_and_is_the_last(port: int, more: bytes) -> None:
    head, body = await exchange(port, post({"prompt": "x"}, more, version=b"1.0"))
    assert head.startswith(b"http/1.1 200")
    assert b"content-length: %d" % len(body) in head
    assert b"connection: close" in head
    assert json.loads(body)["choices"][0]["text"] == "one two"
    head, body = await exchange(port, b"HEAD /health HTTP/1.0\r\n\r\n")
    assert head.startswith(b"http/1.1 200")
    assert body == b""


# ---- upgrades


@pytest.mark.parametrize("path", [b"/", b"/v1/completions", b"/nowhere"])
async def test_a_websocket_is_refused_with_words(port: int, path: bytes) -> None:
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    said = b"GET %b HTTP/1.1\r\n" % path + UPGRADE + b"websocket\r\n" + key + b"\r\n"
    head, body = await exchange(port, said + b"\x81\x05hello")
    assert head.startswith(b"http/1.1 400")
    error = json.loads(body)["error"]
    assert error["code"] == "upgrade_not_supported"
    assert "server-sent events" in error["message"]


@pytest.mark.parametrize("at", [None, 20, 80, -3])
async def test_a_request_that_offers_h2c_is_served_as_it_is(port: int, at: int | None) -> None:
    offer = (
        b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
    )
    said = post({"prompt": "x"}, offer)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said[:at] if at else said)
    if at:
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(said[at:])
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(5):
        answer = await reader.read(-1)
    writer.close()
    assert b'"text":"one two"' in answer
    assert answer.endswith(b'{"status":"ok"}')


# ---- what is no HTTP


@pytest.mark.parametrize(
    "said",
    [
        b"hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_gets_an_error_of_our_shape(port: int, said: bytes) -> None:
    head, body = await exchange(port, said)
    assert head.startswith(b"http/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


# ---- framing


def chunked(rest: bytes, coding: bytes = b"chunked", version: bytes = b"1.1") -> bytes:
    line = b"POST /v1/completions HTTP/%b\r\nHost: x\r\n" % version
    line += b"Content-Type: application/json\r\n"
    return line + b"Transfer-Encoding: %b\r\n\r\n" % coding + rest


WHOLE = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "said",
    [
        chunked(b"zz\r\nabc\r\n"),
        chunked(b"-5\r\nabc\r\n"),
        chunked(b"5\r\n" + b"abcdefgh"),
        chunked(b"f" * 17 + b"\r\n"),
        chunked(WHOLE + b"Content-Length: 5\r\n\r\n"),
        chunked(WHOLE + b"Host: y\r\n\r\n"),
        chunked(WHOLE + b"Transfer-Encoding: chunked\r\n\r\n"),
        chunked(WHOLE + b"\r\n", coding=b"xchunked"),
        chunked(WHOLE + b"\r\n", coding=b"gzip"),
        chunked(WHOLE + b"\r\n", coding=b"gzip, chunked"),
        chunked(WHOLE + b"\r\n", coding=b"chunked\r\nTransfer-Encoding: chunked"),
        chunked(WHOLE + b"\r\n", version=b"1.0"),
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /health HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n",
    ],
)
@pytest.mark.parametrize("behind", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
async def test_framing_that_is_malformed_or_ambiguous_is_a_400_at_once(
    port: int, said: bytes, behind: bytes
) -> None:
    """Also behind a request that was answered. ``exchange`` waits for 5 s at most."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if behind:
        writer.write(behind)
        assert b"200 OK" in await reader.readuntil(b'{"status":"ok"}')
    writer.write(said)
    async with asyncio.timeout(5):
        answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")


async def test_chunks_that_break_off_in_their_middle_are_a_400_at_once(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(chunked(b'5\r\n{"pro\r\n'))
    await asyncio.sleep(0.05)  # the request waits for the rest of its body
    writer.write(b"zz\r\n")
    async with asyncio.timeout(5):
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_body_in_chunks_with_a_trailer_is_read_and_the_trailer_ignored(port: int) -> None:
    said = chunked(WHOLE + b"Authorization: Bearer x\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):  # the connection stays good
        writer.write(said)
        async with asyncio.timeout(5):
            assert b"200 OK" in await reader.readuntil(b'"one two"')
            await reader.readuntil(b"}")
    writer.close()


async def test_a_malformed_body_behind_a_running_answer_does_not_replace_it(port: int) -> None:
    said = post({"prompt": "x", "stream": True}) + chunked(b"zz\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(5):
        answer = await reader.read(-1)
    writer.close()
    first, _, second = answer.partition(b"data: [DONE]\n\n")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in second


PIECES = [
    b"GET / HTTP/1.1\r\n", b"GET /health HTTP/1.0\r\n", b"\r\n", b"Host: x\r\n",
    b"Upgrade: h2c\r\n",
    b"Upgrade: websocket\r\n", b"Connection: upgrade\r\n", b"Content-Length: 3\r\n", b"abc",
    b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n", b"\x00\xff",
    b"Connection: close\r\n", b"\r\n\r\n",
]  # fmt: skip


async def test_no_sequence_of_pieces_gets_a_500_or_is_left_hanging(
    says: Says, tokenizer: Tokenizer
) -> None:
    draw = random.Random(5)
    said = [b"".join(draw.choices(PIECES, k=draw.randint(1, 9))) for _ in range(300)]
    app = make_app(says("a"), tokenizer, HttpSettings("tiny"))

    async def answer_to(port: int, pieces: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(pieces)
        writer.write_eof()
        try:
            return await reader.read(-1)
        except ConnectionResetError:  # it was closed with something unread
            return b""
        finally:
            writer.close()

    async with serving(app) as (_, port), asyncio.timeout(20):
        for first in range(0, len(said), 50):
            answers = await asyncio.gather(*(answer_to(port, s) for s in said[first : first + 50]))
            assert not [a for a in answers if b"HTTP/1.1 5" in a]


async def test_what_is_no_http_behind_a_request_does_not_take_the_place_of_its_answer(
    port: int,
) -> None:
    head, body = await exchange(port, post({"prompt": "x", "stream": True}) + b"hello\r\n\r\n")
    assert head.startswith(b"http/1.1 200")
    assert b"connection: close" in head
    assert b"data: [DONE]\n\n" in body
    assert b"invalid_http" not in body
