"""The deployment ``Ingress``: takes HTTP requests from Ray's proxies and passes them on to nodes.

It computes nothing and holds nothing, so any number of replicas may run: which node a conversation
belongs to follows from its beginning (conversation.py), the same in each replica.
"""

import asyncio
from typing import Any

import aiohttp
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coordinator.http.errors import CLIENT_LEFT, ApiError
from deploy.ray.conversation import conversation_key
from deploy.ray.fetch import new_session
from deploy.ray.forward import Forwarded
from deploy.ray.nodes import Nodes
from deploy.ray.records import holders, named

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A node's own limit is lower and has its own error."""
BODY_S = 60.0


class Ingress:
    def __init__(self, nodes: DeploymentHandle[Any]) -> None:
        self._nodes = Nodes(nodes)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, request: Request) -> Response:
        try:
            body = await _received(request)
        except ApiError as error:
            return error.response()
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)
        if self._session is None:
            self._session = new_session()
        wanted: dict[str, Any] = {"key": conversation_key(request.headers, body)}
        if path := named(request, body):
            wanted["among"] = await holders(self._nodes, path, request)
        return Forwarded(request, body, nodes=self._nodes, session=self._session, wanted=wanted)

    async def __del__(self) -> None:
        if session := getattr(self, "_session", None):
            await session.close()


async def _received(request: Request) -> bytes:
    """Raises ApiError for a body that is too long or too late, and ClientDisconnect."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                parts.append(part)
                if (size := size + len(part)) > MAX_BODY_BYTES:
                    raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        message = f"the body did not arrive within {BODY_S:g} s"
        raise ApiError(408, message, code="request_timeout") from None
    return b"".join(parts)
