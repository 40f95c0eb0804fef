"""Passes one HTTP request on to a node, and its answer back as it comes.

1. Ray chooses a node (nodes.py).
2. The request goes to the node's URL: method, path, query, headers and body as they came. If the
   node cannot be reached, or does not accept the request (it is full, or is stopped), another node
   is chosen; three at most. The body is held until an answer begins.
3. Status, headers and each part of the body are passed on at once.
4. If the client leaves, the node's connection is closed, and the node cancels the request.
5. If the node is lost before its answer begins, another node is asked, once, whatever the method.
   This is safe: no client has seen a part of the lost answer, and a stored response that it may
   have left has an id that no client knows. After a second loss the answer is a 503, which clients
   retry: a request that crashes nodes is not passed on to all of them. If the node is lost later,
   an event of the stream says so, or the answer stays incomplete.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from yarl import URL

from coordinator.http.errors import ApiError
from coordinator.http.messages.error_form import OVERLOADED
from coordinator.http.while_connected import ClientDisconnected, while_connected
from deploy.ray.nodes import RETRY_AFTER_S, Nodes, unavailable
from deploy.ray.pass_through import last_events, request_headers, response_headers, target

log = logging.getLogger("ray.serve")

_MAX_NODES = 3
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_REFUSALS = (503, OVERLOADED)
_NOT_ACCEPTED = (b'"overloaded"', b'"draining"')  # error codes; 529 has its code in the details


class Forwarded(Response):
    """The answer to ``request``. ``wanted``: keyword arguments of the router. ``release`` is called
    when ``body`` is no longer held."""

    def __init__(
        self,
        request: Request,
        body: bytes,
        *,
        nodes: Nodes,
        session: aiohttp.ClientSession,
        wanted: Mapping[str, Any],
        release: Callable[[], object],
    ) -> None:
        self._request, self._sent_body = request, body
        self._nodes, self._session, self._wanted = nodes, session, wanted
        self._release = release
        self._started = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(self._answer(scope, receive, send), receive)
        except ClientDisconnected:
            log.debug("the client has left")
        finally:
            self._drop_body()

    def _drop_body(self) -> None:
        self._sent_body = b""
        self._release()

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
                retry_after_s=RETRY_AFTER_S,
            )
            if not self._started:
                await lost.response()(scope, receive, send)
            elif self._streams:
                last = last_events(scope["path"], lost)
                await send({"type": "http.response.body", "body": last})
            else:
                raise

    async def _from_a_node(self, send: Send) -> None:
        """Ask nodes until one answers. Raises ApiError if no node takes the request, and
        aiohttp.ClientError if a node is lost."""
        tried, lost = list[str](), False
        while True:
            async with self._nodes.chosen(self._wanted, tried) as node:
                last = node.name in tried or len(tried) == _MAX_NODES - 1
                tried.append(node.name)
                try:
                    async with self._asked(node.url) as answer:
                        refusal = await answer.read() if answer.status in _REFUSALS else b""
                        if last or not any(code in refusal for code in _NOT_ACCEPTED):
                            await self._pass_on(answer, refusal, node.name, send)
                            return
                except _UNREACHABLE as error:
                    log.warning("%s cannot be reached: %s", node.name, error)
                    if last:
                        raise unavailable("none can be reached") from error
                except (aiohttp.ClientError, OSError) as error:
                    if self._started or last or lost:
                        raise
                    lost = True
                    log.warning("%s is lost: %r", node.name, error)

    def _asked(self, url: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session.request(
            self._request.method,
            URL(url + target(self._request), encoded=True),
            headers=request_headers(self._request),
            data=self._sent_body or None,
            allow_redirects=False,
        )

    async def _pass_on(
        self, answer: aiohttp.ClientResponse, begins: bytes, node: str, send: Send
    ) -> None:
        """Pass the answer on. ``begins``: the part of the body that has been read."""
        headers = response_headers(answer.raw_headers, node)
        self._started = True
        self._drop_body()
        self._streams = answer.content_type == "text/event-stream"
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if begins:
            await send({"type": "http.response.body", "body": begins, "more_body": True})
        async for part in answer.content.iter_any():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
