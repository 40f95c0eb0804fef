"""The events of one streamed completion, as they come: for what acts on a stream while it runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import httpx


async def stream_events(
    http: httpx.AsyncClient, body: dict[str, Any]
) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """(``perf_counter``, event) of /v1/completions. Raises httpx.HTTPError, and ValueError for an
    event that is an error."""
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise ValueError(f"{event['error']['code']}: {event['error']['message']}")
            yield perf_counter(), event


async def status(http: httpx.AsyncClient) -> dict[str, Any]:
    """What the coordinator says of its workers. Raises httpx.HTTPError."""
    answer = await http.get("/status")
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


async def all_back(http: httpx.AsyncClient, num_workers: int, deadline_s: float) -> None:
    """Wait until so many workers take work. Raises TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while len((await status(http))["workers"]) < num_workers:  # noqa: ASYNC110
            await asyncio.sleep(0.2)  # the status can only be asked
