"""The one place that polls, for what announces itself by no event."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05


async def eventually(check: Callable[[], Awaitable[T]], what: str, deadline_s: float = 20.0) -> T:
    """``check``'s result once it raises no AssertionError; its last complaint at the deadline."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            return await check()
        except AssertionError as error:
            if time.monotonic() >= deadline:
                raise AssertionError(f"not within {deadline_s} s: {what}: {error}") from error
        await asyncio.sleep(POLL_S)
