"""The deltas of several choices as one stream, in the order they come."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from coordinator.http.choice import Choice, Delta


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[int, Delta]]:
    """(index, delta) pairs until all choices have ended; the first failure ends them all."""
    if len(choices) == 1:
        async for delta in choices[0].deltas():
            yield 0, delta
        return

    # What a slow client leaves waiting waits in the core's streams, where it is counted.
    queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(len(choices))

    async def forward(index: int, choice: Choice) -> None:
        try:
            async for delta in choice.deltas():
                await queue.put((index, delta))
            await queue.put((index, None))
        except Exception as error:  # raised again below, in the consumer
            await queue.put((index, error))

    tasks = [asyncio.create_task(forward(i, choice)) for i, choice in enumerate(choices)]
    try:
        num_open = len(tasks)
        while num_open:
            index, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()


async def collected(choices: Sequence[Choice]) -> list[Delta]:
    """Each choice's whole output as one delta."""
    whole = [Delta() for _ in choices]
    texts: list[list[str]] = [[] for _ in choices]
    async for index, delta in merged(choices):
        texts[index].append(delta.text)
        whole[index].tokens += delta.tokens
        whole[index].offsets += delta.offsets
        whole[index].finish = delta.finish
    for delta, parts in zip(whole, texts, strict=True):
        delta.text = "".join(parts)
    return whole
