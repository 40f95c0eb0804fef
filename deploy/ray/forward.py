"""One HTTP request, passed on to a node, and its answer as it comes.

1. Ray chooses a node (router.py) and holds a slot there until the answer has ended.
2. The request goes to the node's URL: method, path, query, headers and body as they came. A node
   that refuses the connection is avoided, and another one is chosen.
3. Status, headers and each part of the body are passed on at once.
4. A client that leaves is noticed, and the node's connection is closed: the node cancels.
5. A node that is lost before its answer begins is a 503, which clients try again; later an event
   of the stream says so, or the answer stays incomplete.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from yarl import URL

from coordinator.http.errors import ApiError
from coordinator.http.while_connected import ClientLeft, while_connected
from deploy.ray.pass_through import last_events, request_headers, response_headers, target

log = logging.getLogger("ray.serve")

_MAX_NODES = 3
_CHOOSE_S = 30.0
_RETRY_AFTER_S = 1.0


class Forwarded(Response):
    """The answer to ``request``. ``wanted``: keyword arguments of the router."""

    def __init__(
        self,
        request: Request,
        body: bytes,
        *,
        nodes: Any,
        session: aiohttp.ClientSession,
        wanted: Mapping[str, Any],
    ) -> None:
        self._request, self._sent_body = request, body
        self._nodes, self._session, self._wanted = nodes, session, wanted
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._answer(scope, receive, send), receive)
        except ClientLeft:
            log.debug("the client has left")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._from_a_node(send)
        except ApiError as error:
            await error.response()(scope, receive, send)
        except (aiohttp.ClientError, OSError) as error:
            log.warning("a node is lost: %r", error)
            lost = ApiError(
                503,
                "the node that served this request was lost; send it again",
                code="node_lost",
                retry_after_s=_RETRY_AFTER_S,
            )
            if not self._started:
                await lost.response()(scope, receive, send)
            elif self._streams:
                last = last_events(scope["path"], lost)
                await send({"type": "http.response.body", "body": last})
            else:
                raise

    async def _from_a_node(self, send: Send) -> None:
        """Raises ApiError where no node answers, and aiohttp.ClientError for a node that is
        lost."""
        avoid: list[str] = []
        while len(avoid) < _MAX_NODES:
            async with AsyncExitStack() as held:
                node = await self._chosen(held, avoid)
                url = node.replica_metadata["url"] + target(self._request)
                try:
                    answer = await held.enter_async_context(
                        self._session.request(
                            self._request.method,
                            URL(url, encoded=True),
                            headers=request_headers(self._request),
                            data=self._sent_body or None,
                            allow_redirects=False,
                        )
                    )
                except aiohttp.ClientConnectorError as error:
                    log.warning("%s refuses the connection: %s", node.replica_id, error)
                    avoid.append(node.replica_id)
                    continue
                await self._pass_on(answer, node.replica_id, send)
                return
        raise _unavailable(f"{_MAX_NODES} nodes have refused the connection")

    async def _chosen(self, held: AsyncExitStack, avoid: list[str]) -> Any:
        """Ray's ReplicaSelection, whose slot is released with ``held``."""
        chosen = self._nodes.choose_replica(**self._wanted, avoid=tuple(avoid))
        try:
            async with asyncio.timeout(_CHOOSE_S):
                return await held.enter_async_context(chosen)
        except TimeoutError:
            raise _unavailable(f"no node was free within {_CHOOSE_S:g} s") from None
        except (BackPressureError, DeploymentUnavailableError) as error:
            raise _unavailable(str(error)) from error

    async def _pass_on(self, answer: aiohttp.ClientResponse, node: str, send: Send) -> None:
        headers = response_headers(answer.raw_headers, node)
        self._started = True
        self._streams = answer.content_type == "text/event-stream"
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for part in answer.content.iter_any():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _unavailable(why: str) -> ApiError:
    return ApiError(503, f"no node takes this request: {why}", retry_after_s=_RETRY_AFTER_S)
