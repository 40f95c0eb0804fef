"""A client of ``/v1/completions`` that keeps what it saw, however the stream ended.

httpx and h11 take more CPU time for a token than the coordinator does: here httptools reads HTTP.
"""

import asyncio
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httptools
import msgspec

TIMEOUT_S = 60.0

_MAX_READ = 65_536

Seen = tuple[list[int], str, str | None]  # token ids, text, finish reason


class Stream:
    """One streamed completion, running from the start; ``ended`` waits for its end.

    ``outcome`` is the terminal state as this client saw it, "" when the connection broke.
    """

    def __init__(self, url: str, prompt: Sequence[int] | str, **params: Any) -> None:
        self._url = url
        self._body = {
            "prompt": prompt, "stream": True, "return_token_ids": True, "temperature": 0,
            "ignore_eos": True, **params,
        }  # fmt: skip
        self.http_id = uuid4().hex
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[float]] = []
        self.finish: str | None = None
        self.error: dict[str, Any] | None = None
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._run())

    @property
    def outcome(self) -> str:
        if self._task.cancelled():
            return "cancelled"
        return "finished" if self.finish else "failed" if self.error else ""

    @property
    def seen(self) -> Seen:
        return self.token_ids, self.text, self.finish

    async def ended(self) -> "Stream":
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()
        return self

    async def reaches(self, num_tokens: int) -> None:
        """Wait until so many tokens have come."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(
                lambda: len(self.token_ids) >= num_tokens or self._task.done()
            )
        assert len(self.token_ids) >= num_tokens, f"ended after {self.token_ids}: {self.error}"

    async def disconnect(self) -> None:
        """Close the connection in the middle."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        """Read the answer. A connection that breaks, or is silent for too long, ends the stream."""
        answer = _Answer()
        try:
            async with asyncio.timeout(TIMEOUT_S) as silence:
                place = urlsplit(self._url)
                reader, writer = await asyncio.open_connection(place.hostname, place.port)
                try:
                    writer.write(self._request(place.netloc))
                    while not answer.complete and (data := await reader.read(_MAX_READ)):
                        silence.reschedule(asyncio.get_running_loop().time() + TIMEOUT_S)
                        await self._take(answer.lines(data))
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            pass
        assert answer.complete or self.finish is None, "the connection broke after the end"
        if answer.complete and answer.status != 200:
            self.error = json.loads(answer.rest)["error"]

    def _request(self, host: str) -> bytes:
        body = json.dumps(self._body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: {self.http_id}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                self._take_event(msgspec.json.decode(line.removeprefix(b"data: ")))
        async with self._changed:
            self._changed.notify_all()

    def _take_event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]
            return
        (choice,) = event["choices"]
        assert self.finish is None, "tokens after the end"
        self.token_ids += choice["token_ids"]
        self.text += choice["text"]
        self.finish = choice["finish_reason"]
        if scored := choice["logprobs"]:
            self.logprobs += scored["token_logprobs"]
            self.top_logprobs += [list(top.values()) for top in scored["top_logprobs"]]


class _Answer:
    """The answer to one request as its bytes come, by httptools."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self.rest = b""
        """What has come behind the last whole line; of an error, all."""
        self._parser = httptools.HttpResponseParser(self)

    def lines(self, data: bytes) -> list[bytes]:
        """The lines of the body that end with ``data``."""
        self._parser.feed_data(data)
        if self.status != 200:
            return []
        *whole, self.rest = self.rest.split(b"\n")
        return whole

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.rest += body

    def on_message_complete(self) -> None:
        self.complete = True


async def all_ended(streams: Sequence[Stream]) -> list[Stream]:
    return [await stream.ended() for stream in streams]


async def some_reach(streams: Sequence[Stream], count: int, num_tokens: int) -> None:
    """Wait until ``count`` of them have so many tokens. A test that acts in the middle of streams
    waits for a few of them: those that a busy machine is slow with, others may outrun."""
    waiting = [asyncio.ensure_future(stream.reaches(num_tokens)) for stream in streams]
    try:
        for reached in islice(asyncio.as_completed(waiting), count):
            await reached
    finally:
        for task in waiting:
            task.cancel()
