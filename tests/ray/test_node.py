"""How long a node's stack gets to end."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from deploy.ray.fetch import Fetched
from deploy.ray.node import Node, Unhealthy
from deploy.ray.settings import STOP_S


class OneNode(Node):
    """Without Ray, and without a stack of its own."""

    def __del__(self) -> None:  # type: ignore[override]
        """Ray would await the other one."""


GONE, BUSY, WELL = aiohttp.ClientError(), TimeoutError(), b"{}"
NO_WORKER = b'{"ready": false, "problems": ["no live decode worker"]}'
FULL = b'{"ready": false, "problems": ["no room"]}'
READY = b'{"ready": true}'


def node(*answers: bytes | Exception) -> tuple[OneNode, list[float]]:
    """Its stack gives these ``answers``, and the last one again and again."""
    deadlines: list[float] = []
    left: Iterator[bytes | Exception] = iter(answers)

    async def stop(deadline_s: float) -> None:
        deadlines.append(deadline_s)

    async def get(path: str, headers: Any) -> Fetched:
        answer = next(left, answers[-1])
        if isinstance(answer, Exception):
            raise answer
        return Fetched(200, {}, answer)

    found = object.__new__(OneNode)
    found.__dict__ |= {
        "_stack": SimpleNamespace(url="http://node", stop=stop, ended=""),
        "_fetcher": SimpleNamespace(get=get), "_stop_s": 600 + STOP_S, "_unready_s": 900.0,
        "_dead_since": math.inf, "_dead_too_long": False,
    }  # fmt: skip
    return found, deadlines


@pytest.mark.parametrize(
    ("answers", "deadline_s"),
    [
        ([WELL], 600 + STOP_S),
        ([BUSY, WELL], 600 + STOP_S),
        ([GONE, BUSY, WELL], 600 + STOP_S),
        ([BUSY, BUSY, BUSY, WELL], STOP_S),
        ([GONE], STOP_S),
    ],
    ids=["it drains", "it is late once", "it is late twice", "it hangs", "it is gone"],
)
async def test_a_stack_that_can_finish_nothing_is_not_waited_for(
    answers: list[bytes | Exception], deadline_s: float
) -> None:
    found, deadlines = node(*answers)
    await found.end()
    assert deadlines == [deadline_s]


async def test_a_stack_that_was_never_ready_is_not_waited_for() -> None:
    found, deadlines = node(WELL)
    found._dead_too_long = True
    del found._fetcher
    await found.end()
    assert deadlines == [STOP_S]


@pytest.mark.parametrize(
    ("checks", "num_unhealthy", "deadline_s"),
    [
        ([(0, NO_WORKER), (901, NO_WORKER)], 1, STOP_S),
        ([(0, NO_WORKER), (901, NO_WORKER), (902, READY)], 1, 600 + STOP_S),
        ([(0, READY), (901, NO_WORKER)], 0, 600 + STOP_S),
        ([(0, NO_WORKER), (5, FULL), (901, NO_WORKER)], 0, 600 + STOP_S),
        ([(0, NO_WORKER)], 0, 600 + STOP_S),
    ],
    ids=["too long", "there again", "just now", "between", "nobody asked again"],
)
async def test_only_a_check_tells_that_no_worker_has_been_there_for_too_long(
    checks: list[tuple[float, bytes]],
    num_unhealthy: int,
    deadline_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, deadlines = node(*(answer for _, answer in checks), WELL)
    monkeypatch.setattr("deploy.ray.node.time", SimpleNamespace(monotonic=lambda: now))
    for at, _ in checks:
        now = at
        try:
            await found.check_health()
        except Unhealthy:
            num_unhealthy -= 1
    now = 5000.0
    await found.end()
    assert num_unhealthy == 0
    assert deadlines == [deadline_s]
