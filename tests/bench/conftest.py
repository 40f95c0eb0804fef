"""A stub server in a thread of its own, so that a whole command can run against it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.bench.stub import Behaviour, Stub


@contextmanager
def stub_thread(behaviour: Behaviour) -> Iterator[Stub]:
    loop = asyncio.new_event_loop()
    stub = Stub(behaviour)
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with stub:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


@pytest.fixture
def serve_stub() -> Iterator[Callable[[Behaviour], Stub]]:
    with ExitStack() as opened:
        yield lambda behaviour: opened.enter_context(stub_thread(behaviour))
