"""Requests begin a few a turn of the loop, in the order they came."""

import asyncio

from coordinator.http.request_throttle import STARTED_PER_TURN, RequestThrottle


class Begun:
    """An ASGI app that notes in which turn of the loop each request begins."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.turn = 0
        self.by_turn: dict[int, int] = {}

    async def __call__(self, scope, receive, send) -> None:
        self.order.append(scope["number"])
        self.by_turn[self.turn] = self.by_turn.get(self.turn, 0) + 1

    async def count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turn += 1


async def test_a_crowd_begins_in_order_over_many_turns() -> None:
    begun = Begun()
    app = RequestThrottle(begun)
    counting = asyncio.create_task(begun.count_turns())
    crowd = [
        asyncio.create_task(app({"type": "http", "number": i}, None, None)) for i in range(200)
    ]
    crowd[50].cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    counting.cancel()
    assert begun.order == [i for i in range(200) if i != 50]
    assert max(begun.by_turn.values()) <= STARTED_PER_TURN
    assert len(begun.by_turn) >= 199 // STARTED_PER_TURN


async def test_one_alone_begins_at_once_each_time() -> None:
    begun = Begun()
    app = RequestThrottle(begun)
    for number in range(3 * STARTED_PER_TURN):
        await app({"type": "http", "number": number}, None, None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert begun.order == list(range(3 * STARTED_PER_TURN))
