"""Clients that ask for known answers all the time, and write down what each of them saw."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from tests.soak.cases import Case

RETRY_S = 0.25
TIMEOUT_S = 120.0


@dataclass
class Seen:
    """One request by its client. ``outcome`` is finished, failed, cancelled (the client left),
    refused (503, or no connection: nothing was accepted) or broken (no end came). Times are
    ``time.monotonic`` of the start, of each event with tokens, and of the end."""

    case: Case
    stream: bool
    http_id: str = field(default_factory=lambda: uuid4().hex)
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    outcome: str = "open"
    detail: str = ""
    token_ids: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    explained: bool = False
    """The answer differs as one may whose prompt was computed again (tests/soak/resumed.py)."""

    @property
    def wrong(self) -> str:
        """What differs from the right answer; "" when all that came is right."""
        if self.explained:
            return ""
        expected = self.case.token_ids[: len(self.token_ids)]
        whole = self.outcome != "finished" or len(self.token_ids) == len(self.case.token_ids)
        if tuple(self.token_ids) == expected and whole:
            return ""
        first = self.case.first_difference(self.token_ids)
        return (
            f"case {self.case.name}, request {self.http_id}: {len(self.token_ids)} tokens for "
            f"{len(self.case.token_ids)}, the first difference is token {first}"
            f"{self.case.clear_by(first)}"
        )

    def silence_s(self, since: float) -> float | None:
        """From ``since`` to the next token, of a stream that was open then and had one more."""
        if not self.stream or self.started > since:
            return None
        return next((at - since for at in self.at if at > since), None)


class Load:
    """``num_clients`` clients in turn of a shared list of cases, until ``pause``."""

    def __init__(
        self,
        url: str,
        cases: Sequence[Case],
        num_clients: int,
        seed: int,
        headers: Callable[[random.Random], dict[str, str]] = lambda draw: {},
    ) -> None:
        """``headers`` draws those of each request: its API key."""
        self._headers = headers
        self.seen: list[Seen] = []
        self._cases, self._num_clients = cases, num_clients
        self._draw = random.Random(seed)
        self._going = False
        self._tasks: set[asyncio.Task[Any]] = set()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=2 * num_clients)
        self.http = httpx.AsyncClient(
            base_url=url, limits=limits, timeout=httpx.Timeout(TIMEOUT_S, connect=10.0)
        )

    def resume(self) -> None:
        self._going = True
        for _ in range(self._num_clients):
            self._start(self._client())

    async def pause(self) -> None:
        """Ask nothing more; returns when all that was asked has ended."""
        self._going = False
        async with asyncio.timeout(2 * TIMEOUT_S):
            while self._tasks:
                await asyncio.wait(set(self._tasks))

    def ask(self, *, stream: bool | None = None, pause_s: float = 0.0) -> "tuple[Seen, Any]":
        """One more request, at once; ``pause_s`` is how long its client waits at each event."""
        seen = Seen(
            self._draw.choice(self._cases),
            self._draw.random() < 0.7 if stream is None else stream,
        )
        self.seen.append(seen)
        return seen, self._start(self._request(seen, pause_s))

    async def close(self) -> None:
        self._going = False
        for task in self._tasks:
            task.cancel()
        await self.http.aclose()

    def _start(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _client(self) -> None:
        while self._going:
            seen, task = self.ask()
            await task
            if seen.outcome in ("refused", "broken"):
                await asyncio.sleep(RETRY_S)

    async def _request(self, seen: Seen, pause_s: float) -> None:
        try:
            await (self._streamed(seen, pause_s) if seen.stream else self._plain(seen))
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            seen.outcome, seen.detail = "refused", repr(error)
        except httpx.TransportError as error:
            if seen.outcome == "open":
                seen.outcome, seen.detail = "broken", repr(error)
        except asyncio.CancelledError:
            seen.outcome = "cancelled"
        finally:
            if seen.outcome == "open":
                seen.outcome, seen.detail = "broken", "the response ended without an end"
            seen.ended = time.monotonic()

    async def _plain(self, seen: Seen) -> None:
        answer = await self.http.post(
            "/v1/completions", json=seen.case.body, headers=self._headers_of(seen)
        )
        if answer.status_code != 200:
            self._not_ok(seen, answer)
            return
        (choice,) = answer.json()["choices"]
        seen.token_ids, seen.outcome = choice["token_ids"], "finished"

    async def _streamed(self, seen: Seen, pause_s: float) -> None:
        async with self.http.stream(
            "POST", "/v1/completions", json=seen.case.body | {"stream": True},
            headers=self._headers_of(seen),
        ) as answer:  # fmt: skip
            if answer.status_code != 200:
                await answer.aread()
                self._not_ok(seen, answer)
                return
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    seen.outcome, seen.detail = "failed", str(event["error"].get("code"))
                    continue
                for choice in event["choices"]:
                    seen.token_ids += choice["token_ids"]
                    if choice["finish_reason"]:
                        seen.outcome = "finished"
                seen.at.append(time.monotonic())
                if pause_s:
                    await asyncio.sleep(pause_s)

    def _headers_of(self, seen: Seen) -> dict[str, str]:
        return {**self._headers(self._draw), "X-Request-Id": seen.http_id}

    def _not_ok(self, seen: Seen, answer: httpx.Response) -> None:
        with suppress(ValueError, KeyError, TypeError):
            seen.detail = f"{answer.status_code} {answer.json()['error']['code']}"
        seen.detail = seen.detail or f"{answer.status_code} {answer.text[:100]}"
        refused = answer.status_code in (429, 503) and "retry-after" in answer.headers
        seen.outcome = "refused" if refused else "failed"
