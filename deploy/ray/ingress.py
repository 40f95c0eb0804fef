"""The deployment ``Ingress``: takes HTTP requests from Ray's proxies and passes them on to nodes.

It computes nothing, and holds a request's body until its answer begins. Any number of replicas may
run: each finds the same node for a conversation, by its beginning (conversation.py).
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from weakref import finalize

import aiohttp
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coordinator.http.bodies.held_bytes import BodyBytes, HeldBytes
from coordinator.http.errors import CLIENT_CLOSED_REQUEST, ApiError
from deploy.ray.conversation import conversation_key
from deploy.ray.fetch import new_session
from deploy.ray.forward import Forwarded
from deploy.ray.nodes import Nodes
from deploy.ray.records import holders, key_of, named

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A node's own limit is lower and has its own error."""
MAX_HELD_BYTES = 1024 * 1024 * 1024
"""Limit for all bodies together. A key may hold half of it at most, and so may an address, as keys
are not checked here: a client may send any."""
BODY_S = 60.0


class Ingress:
    def __init__(self, nodes: DeploymentHandle[Any]) -> None:
        self._nodes = Nodes(nodes)
        self._session: aiohttp.ClientSession | None = None
        self._bytes = BodyBytes(MAX_HELD_BYTES)

    async def __call__(self, request: Request) -> Response:
        held = self._bytes.hold(*_owners(request))
        with ExitStack() as refused:
            refused.callback(held.release)
            try:
                body = await _received(request, held)
            except ApiError as error:
                return error.response()
            except ClientDisconnect:
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            if self._session is None:
                self._session = new_session()
            wanted: dict[str, Any] = {"key": conversation_key(request.headers, body)}
            if path := named(request, body):
                wanted["among"] = await holders(self._nodes, path, request)
            forwarded = Forwarded(
                request,
                body,
                nodes=self._nodes,
                session=self._session,
                wanted=wanted,
                release=held.release,
            )
            refused.pop_all()
        finalize(forwarded, held.release)  # if the client leaves before it is sent
        return forwarded

    async def __del__(self) -> None:
        if session := getattr(self, "_session", None):
            await session.close()


def _owners(request: Request) -> Iterator[str]:
    """The owners of a body for its limits: the client's address, and the key that it sends."""
    yield f"address {request.client.host if request.client else ''}"
    if key := key_of(request):
        yield f"key {key}"


async def _received(request: Request, held: HeldBytes) -> bytes:
    """Receive the body. Raises ApiError if it is too long or too late, or too many bytes are
    ``held``; ClientDisconnect."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                held.add(len(part))
                parts.append(part)
                if (size := size + len(part)) > MAX_BODY_BYTES:
                    raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        message = f"the body did not arrive within {BODY_S:g} s"
        raise ApiError(408, message, code="request_timeout") from None
    return b"".join(parts)
