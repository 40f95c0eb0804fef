"""Work that only makes sense while its client is there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_T = TypeVar("_T")


class ClientLeft(Exception):
    """The client closed the connection, or has stopped to read."""


async def while_connected(
    work: Coroutine[Any, Any, _T],
    receive: Receive,
    *,
    stalled: Callable[[], bool] = lambda: False,
    check_s: float = 15.0,
) -> _T:
    """The result of ``work``; raises ClientLeft, with the work cancelled and over, as soon as the
    server reports a disconnect, or within ``check_s`` after ``stalled`` became true."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        while True:
            done, _ = await asyncio.wait(
                {task, gone}, timeout=check_s, return_when=asyncio.FIRST_COMPLETED
            )
            if task in done:
                return task.result()
            if gone in done:
                raise ClientLeft("connection closed by the client")
            if stalled():
                raise ClientLeft("the client reads nothing")
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
