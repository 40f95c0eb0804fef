"""Cancels work when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class ClientDisconnected(Exception):
    """The client closed the connection, or was disconnected."""


async def while_connected(
    work: Coroutine[Any, Any, _T],
    receive: Receive,
) -> _T:
    """The result of ``work``. Raises ClientDisconnected, once the work is cancelled and over, as
    soon as the server reports a disconnect."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        done, _ = await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        raise ClientDisconnected("connection closed by the client")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
