"""Messages at the coordinator's end of a channel, one by one."""

import asyncio
from contextlib import suppress

from transport.wire.channel import CoordinatorChannel
from transport.wire.errors import WireError
from transport.wire.messages import FromWorker


class _Enough(Exception):
    """One message is."""


async def received(
    channel: CoordinatorChannel, within_s: float = 5.0
) -> tuple[str, FromWorker | WireError]:
    """The next message and its sender."""
    came: list[tuple[str, FromWorker | WireError]] = []

    def take(instance: str, message: FromWorker | WireError) -> None:
        came.append((instance, message))
        raise _Enough

    with suppress(_Enough):
        async with asyncio.timeout(within_s):
            await channel.deliver(take, turn_s=1.0)
    return came[0]
