"""An ASGI app behind the coordinator's own HTTP server."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import Receive, Scope, Send

from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.connections import MIN_SILENT_S, Connections
from coordinator.http.server.http_server import HttpServer

App = Callable[[Scope, Receive, Send], Awaitable[None]]
SEND_BUFFER_BYTES = 2**16


@asynccontextmanager
async def serving(
    app: App, *, max_connections: int = 64, min_silent_s: float = MIN_SILENT_S, **settings: Any
) -> AsyncIterator[tuple[HttpServer, int]]:
    """The server and its port. The kernel buffers little of what a connection sends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    connections = Connections(max_connections, min_silent_s=min_silent_s)
    server = HttpServer(app, listener, HttpSettings("tiny", **settings), connections)  # type: ignore[arg-type]
    running = asyncio.create_task(server.serve())
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await running


def post(body: dict[str, object], head: bytes = b"Host: x\r\n", version: bytes = b"1.1") -> bytes:
    content = json.dumps(body).encode()
    line = b"POST /v1/completions HTTP/%b\r\n" % version
    line += b"Content-Type: application/json\r\n"
    return line + head + b"Content-Length: %d\r\n\r\n" % len(content) + content
