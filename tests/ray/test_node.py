"""How long a node's stack gets to end."""

import math
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from deploy.ray.fetch import Fetched
from deploy.ray.node import Node
from deploy.ray.settings import STOP_S


class OneNode(Node):
    """Without Ray, and without a stack of its own."""

    def __del__(self) -> None:  # type: ignore[override]
        """Ray would await the other one."""


def node(answer: Exception | None, *, unready_s: float) -> tuple[OneNode, list[float]]:
    deadlines: list[float] = []

    async def stop(deadline_s: float) -> None:
        deadlines.append(deadline_s)

    async def get(path: str, headers: Any) -> Fetched:
        if answer is not None:
            raise answer
        return SimpleNamespace(body=b"{}")  # type: ignore[return-value]

    found = object.__new__(OneNode)
    found.__dict__ |= {
        "_stack": SimpleNamespace(url="http://node", stop=stop),
        "_fetcher": SimpleNamespace(get=get), "_stop_s": 600 + STOP_S, "_unready_s": 900.0,
        "_ready_at": time.monotonic() - unready_s,
    }  # fmt: skip
    return found, deadlines


@pytest.mark.parametrize(
    ("answer", "unready_s", "deadline_s"),
    [
        (None, 60, 600 + STOP_S),
        (TimeoutError(), 60, STOP_S),
        (aiohttp.ClientError(), 60, STOP_S),
        (None, 1000, STOP_S),
        (AttributeError(), math.inf, STOP_S),
    ],
    ids=["it drains", "it hangs", "it is gone", "no worker has been there", "never ready"],
)
async def test_a_stack_that_can_finish_nothing_is_not_waited_for(
    answer: Exception | None, unready_s: float, deadline_s: float
) -> None:
    found, deadlines = node(answer, unready_s=unready_s)
    await found.end()
    assert deadlines == [deadline_s]
