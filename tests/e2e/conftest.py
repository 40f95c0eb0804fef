"""Stacks, one at a time where it can be: the machine may be small. Those that files share end with
the folder's last test, as one that waits for requests costs up to a fortieth of a core."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.e2e.forks import forker
from tests.e2e.served import TINY, served
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen
from tests.local_redis import LocalRedis

Start = Callable[..., Stack]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
    forker()  # on the main thread, as it ends with the thread that starts it


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a stack with ``start(model, *args, **settings)``; it ends with the test."""
    stacks: list[Stack] = []

    def begin(model: Path, *args: str, **settings: object) -> Stack:
        stacks.append(Stack(model, *args, **settings))
        return stacks[-1].start()

    yield begin
    for stack in stacks:
        stack.close()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[LocalRedis]:
    """A Redis that outlives the services that use it."""
    server = LocalRedis(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@contextmanager
def ending_well(stack: Stack) -> Iterator[Stack]:
    """Start ``stack``, and check when the context is left that it ends in order."""
    try:
        yield stack.start()
        assert stack.stop() == 0
    finally:
        stack.close()


@pytest.fixture(scope="package")
def baton() -> Iterator[Stack]:
    """One prefill and one decode worker with ample room, for tests that break nothing."""
    stack = Stack(
        served("per_expert"), heartbeat=0.25, page_size=16, num_pages=2048, poison=True,
        verify_handoff=True,
    )  # fmt: skip
    with ending_well(stack):
        yield stack


@pytest.fixture(scope="package")
def tiny() -> Iterator[Stack]:
    """The bundled model, every handoff's bytes compared."""
    with ending_well(Stack(TINY, verify_handoff=True)) as stack:
        yield stack


@pytest.fixture(scope="package")
def texts() -> list[Seen]:
    """What every stack of ``per_expert`` answers to test_colocated.py's streams, whatever its
    workers; filled by the first test that asks."""
    return []


@pytest.fixture(scope="package")
def cold() -> Iterator[Stack]:
    """One worker that keeps no prefix, and so computes every prompt whole."""
    stack = Stack(
        served("per_expert"), "--role", "colocated", "--workers", "1", "--no-prefix-cache",
        dtype="float32", heartbeat=0.25, page_size=16, num_pages=512, max_batch_tokens=256,
        poison=True,
    )  # fmt: skip
    with ending_well(stack):
        yield stack
