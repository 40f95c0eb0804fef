"""A client of any OpenAI-compatible server that takes as little time from it as it can.

It notes when bytes arrive and looks into them only after the response is complete, so that on a
small machine the clock measures the server rather than JSON.
"""

import asyncio
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 600.0


class RequestFailed(Exception):
    """A response that is not a complete completion; the message says what came instead."""


@dataclass(frozen=True)
class Completion:
    """One streamed completion. Times are ``perf_counter`` seconds; ``token_at_s`` is when the
    event with each piece of text arrived."""

    sent_at_s: float
    done_at_s: float
    token_at_s: tuple[float, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.done_at_s - self.sent_at_s

    @property
    def ttft_s(self) -> float:
        return self.token_at_s[0] - self.sent_at_s

    @property
    def itl_s(self) -> list[float]:
        return [b - a for a, b in zip(self.token_at_s, self.token_at_s[1:], strict=False)]


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection; one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname, f"{url!r} names no host"
        self._host, self._port = parts.hostname, parts.port or 80
        self._transport: asyncio.Transport | None = None
        self._response = _Response()
        self._done: asyncio.Future[None] | None = None

    async def complete(self, **body: Any) -> Completion:
        """POST ``body`` to /v1/completions as a stream; raises RequestFailed."""
        content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        sent_at_s, response = await self._exchange("POST", "/v1/completions", content.encode())
        return response.completion(sent_at_s)

    async def get(self, path: str) -> str:
        """The text at ``path``; raises RequestFailed."""
        _, response = await self._exchange("GET", path, b"")
        return response.text()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[float, "_Response"]:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
            self._transport = transport
        self._response, self._done = _Response(), loop.create_future()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sent_at_s = perf_counter()
        self._transport.write(head.encode() + body)
        async with asyncio.timeout(TIMEOUT_S):
            await self._done
        return sent_at_s, self._response

    def data_received(self, data: bytes) -> None:
        if self._response.feed(data, perf_counter()) and self._done and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            got = self._response.num_bytes
            self._done.set_exception(RequestFailed(f"connection lost after {got} bytes: {exc}"))


class _Response:
    """The bytes of one response and when they came."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._pieces: list[bytes] = []
        self._ends: list[int] = []
        self._times: list[float] = []
        self._head: bytes | None = None
        self._length: int | None = None

    def feed(self, data: bytes, now: float) -> bool:
        """Take in ``data``; True when the response is complete."""
        self.num_bytes += len(data)
        self._pieces.append(data)
        self._ends.append(self.num_bytes)
        self._times.append(now)
        if self._head is None:
            head, found, _ = b"".join(self._pieces).partition(b"\r\n\r\n")
            if not found:
                return False
            self._head = head + b"\r\n\r\n"
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    self._length = len(self._head) + int(line[15:])
        if self._length is not None:
            return self.num_bytes >= self._length
        return b"".join(self._pieces[-2:]).endswith(b"\r\n0\r\n\r\n")

    def text(self) -> str:
        body = b"".join(data for _, data in self._body())
        status = (self._head or b"").split(b"\r\n")[0].decode()
        if " 200 " not in f"{status} ":
            raise RequestFailed(f"{status}: {body[:300].decode(errors='replace')}")
        return body.decode()

    def completion(self, sent_at_s: float) -> Completion:
        status = self.text()
        token_at_s: list[float] = []
        texts: list[str] = []
        token_ids: list[int] = []
        usage: dict[str, int] = {}
        finish_reason, ended = None, False
        for at_s, event in self._events():
            if event == b"[DONE]":
                ended = True
                continue
            content = json.loads(event)
            if "error" in content:
                raise RequestFailed(f"an error in the stream: {content['error']}")
            usage = content.get("usage") or usage
            for choice in content["choices"]:
                texts.append(choice["text"])
                token_ids += choice.get("token_ids") or ()
                finish_reason = choice["finish_reason"] or finish_reason
                token_at_s.append(at_s)
        if not ended or not token_at_s:
            raise RequestFailed(f"a stream without its end: {status[-300:]!r}")
        return Completion(
            sent_at_s,
            self._times[-1],
            tuple(token_at_s),
            "".join(texts),
            tuple(token_ids),
            finish_reason,
            usage,
        )

    def _events(self) -> list[tuple[float, bytes]]:
        """(arrival, content) of every server-sent event."""
        found: list[tuple[float, bytes]] = []
        rest = b""
        for at_s, data in self._body():
            *events, rest = (rest + data).split(b"\n\n")
            found += [(at_s, event.removeprefix(b"data: ")) for event in events]
        return found

    def _body(self) -> list[tuple[float, bytes]]:
        """(arrival, content) of every chunk, or of the whole body."""
        whole = b"".join(self._pieces)
        begin = len(self._head or b"")
        if self._length is not None:
            return [(self._times[-1], whole[begin:])]
        chunks: list[tuple[float, bytes]] = []
        while True:
            line_end = whole.index(b"\r\n", begin)
            size = int(whole[begin:line_end], 16)
            if size == 0:
                return chunks
            begin = line_end + 2 + size + 2
            arrived = self._times[bisect_left(self._ends, begin)]
            chunks.append((arrived, whole[line_end + 2 : begin - 2]))


async def one_by_one(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Completion]:
    """Each request after the one before it, over one connection."""
    connection = Connection(url)
    try:
        return [await connection.complete(**body) for body in bodies]
    finally:
        connection.close()


async def at_once(
    url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int | None = None
) -> list[Completion]:
    """``concurrency`` requests at a time (default: all), a connection each, in order."""
    results: list[Completion | None] = [None] * len(bodies)
    waiting = iter(enumerate(bodies))

    async def worker() -> None:
        connection = Connection(url)
        try:
            for index, body in waiting:
                results[index] = await connection.complete(**body)
        finally:
            connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency or len(bodies), len(bodies))):
            tasks.create_task(worker())
    return [result for result in results if result is not None]
