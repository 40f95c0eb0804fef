"""The nodes as the ingress sees them: one is chosen for a request, or all are asked.

Ray's router only chooses the node for a request (router.py). The request goes to the node's URL, so
Ray's count of requests at the node stays at 0. The load of a node is therefore the larger of two
numbers: requests that this ingress has open there, and open requests by the node's last report.
Requests at a node that is stopped end by Baton's own drain. A slot held at Ray would be lost with
the ingress that holds it, and would count for ever.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from coordinator.http.errors import ApiError
from deploy.ray.fetch import Fetched

log = logging.getLogger("ray.serve")

RETRY_AFTER_S = 1.0
_CHOOSE_S = 30.0
_ANSWER_S = 5.0


@dataclass(frozen=True)
class ChosenNode:
    name: str
    url: str


class Nodes:
    """The nodes; ``handle``: Ray's handle of the deployment Node."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def chosen(
        self, wanted: Mapping[str, Any], avoid: Sequence[str]
    ) -> AsyncIterator[ChosenNode]:
        """The node for one request, until its answer has ended; ``wanted`` are arguments of the
        router. Raises ApiError."""
        node = await self._choose(wanted, avoid)
        self._open[node.name] += 1
        try:
            yield node
        finally:
            self._open[node.name] -= 1
            self._open += Counter()  # forgets nodes with nothing open

    async def _choose(self, wanted: Mapping[str, Any], avoid: Sequence[str]) -> ChosenNode:
        # NOTE: _reserve is for such callers, but it is no public argument of Ray 2.60. If Ray does
        # not know it, a slot is held until the end of this context, which is at once.
        choosing = self._handle.choose_replica(
            **wanted, avoid=tuple(avoid), open=dict(self._open), _reserve=False
        )
        try:
            async with asyncio.timeout(_CHOOSE_S), choosing as selection:
                return ChosenNode(selection.replica_id, selection.replica_metadata["url"])
        except TimeoutError:
            raise unavailable(f"no node has been there for {_CHOOSE_S:g} s") from None
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise unavailable(str(error)) from error

    async def ask_all(self, path: str, headers: Mapping[str, str]) -> Sequence[tuple[str, Fetched]]:
        """The answers to a GET, with the nodes' names; none if one node does not answer in time."""
        asked = self._handle.broadcast("ask", path, headers)
        try:
            found = await asked.results_async(timeout_s=_ANSWER_S, return_exceptions=True)
        except TimeoutError:
            log.warning("not all nodes have answered GET %s within %g s", path, _ANSWER_S)
            return ()
        return [each for each in found if not isinstance(each, BaseException)]


def unavailable(why: str) -> ApiError:
    return ApiError(503, f"no node takes this request: {why}", retry_after_s=RETRY_AFTER_S)
