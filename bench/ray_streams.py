"""Streams through Ray Serve by openai-python, and the outcome of each."""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from openai import APIError, AsyncOpenAI

_NAMES = ("Nina", "Diana", "Hugo", "Weng", "Laura", "Ben", "Ahmed", "Rosa")


@dataclass
class Seen:
    """One stream, without retries. ``node``: the replica that answers, "" if none does. Times are
    in seconds of ``perf_counter``."""

    began: float
    node: str = ""
    first_at: float | None = None
    ended_at: float = math.inf
    text: str = ""
    finish: str = ""
    error: str = ""

    @property
    def whole(self) -> bool:
        return bool(self.finish) and not self.error


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0)


async def stream(api: AsyncOpenAI, seen: Seen, content: str, **fields: Any) -> None:
    """Send a streamed request and fill ``seen``. Never raises for anything the server does."""
    try:
        raw = await api.chat.completions.with_raw_response.create(
            model="tiny", messages=[{"role": "user", "content": content}], stream=True, **fields
        )
        seen.node = raw.headers.get("x-baton-node", "")
        async for chunk in raw.parse():
            for choice in chunk.choices:
                seen.first_at = seen.first_at or perf_counter()
                seen.text += choice.delta.content or ""
                seen.finish = choice.finish_reason or seen.finish
    except APIError as error:
        seen.error = f"{type(error).__name__}: {error}"
    except Exception as error:  # from the transport below
        seen.error = f"unexpected {type(error).__name__}: {error}"
    seen.ended_at = perf_counter()


async def answers(url: str, questions: list[str], concurrency: int) -> list[Seen]:
    """Answer ``questions`` greedily; the outcomes are in their order."""
    room = asyncio.Semaphore(concurrency)
    async with client(url) as api:

        async def one(question: str) -> Seen:
            async with room:
                seen = Seen(perf_counter())
                await stream(api, seen, question, max_tokens=200, temperature=0)
                return seen

        return await asyncio.gather(*map(one, questions))


class Load:
    """Keeps ``target`` streams running, each with a conversation of its own. ``target`` may change
    at any time. ``seen``: all streams that have begun."""

    def __init__(self, api: AsyncOpenAI, num_tokens: int) -> None:
        self._api, self._num_tokens = api, num_tokens
        self._draw = random.Random(0)
        self._running: set[asyncio.Task[None]] = set()
        self.target = 0
        self.seen: list[Seen] = []

    def start(self, target: int) -> None:
        self.target = target
        while len(self._running) < target:
            self.begin(self._num_tokens)

    def begin(self, num_tokens: int) -> Seen:
        """Start one more stream, of ``num_tokens`` tokens."""
        seen = Seen(perf_counter())
        self.seen.append(seen)
        name, number = self._draw.choice(_NAMES), self._draw.randrange(10**6)
        fields: Mapping[str, Any] = {"max_tokens": num_tokens, "extra_body": {"ignore_eos": True}}
        content = f"{name} has {number} shells."
        task = asyncio.create_task(stream(self._api, seen, content, **fields))
        self._running.add(task)
        task.add_done_callback(self._next)
        return seen

    async def stop(self) -> None:
        """Start no more streams, and wait for those that run."""
        self.target = 0
        while self._running:
            await asyncio.wait(self._running)

    def _next(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if len(self._running) < self.target:
            self.begin(self._num_tokens)
