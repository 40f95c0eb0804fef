"""A client of ``/v1/completions`` that keeps what it saw, however the stream ended."""

import asyncio
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

import httpx

TIMEOUT_S = 60.0

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
        headers = {"X-Request-Id": self.http_id}
        async with httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers) as http:
            try:
                async with http.stream("POST", f"{self._url}/v1/completions", json=self._body) as r:
                    if r.status_code != 200:
                        await r.aread()
                        self.error = r.json()["error"]
                    async for line in r.aiter_lines():
                        await self._take(line)
            except httpx.TransportError:
                assert self.finish is None, "the connection broke after the end"

    async def _take(self, line: str) -> None:
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        event = json.loads(line.removeprefix("data: "))
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
        async with self._changed:
            self._changed.notify_all()


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
