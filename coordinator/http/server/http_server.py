"""The HTTP server: uvicorn, with connections that are accepted, limited and timed here.

A reverse proxy (docs/reverse-proxy.md) limits and times connections too, but most installations
have none. Connections use descriptors that workers and Redis need, and any client may stop in the
middle of a head, or of reading an answer. uvicorn limits only requests whose head has arrived, and
times only idle connections.
"""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.acceptor import Acceptor
from coordinator.http.server.connections import Connections
from coordinator.http.server.head_deadline import HeadDeadline

CLOSE_TIMEOUT_S = 5.0
_BACKLOG = 65_535  # the kernel lowers it to net.core.somaxconn


class HttpServer(uvicorn.Server):
    """uvicorn behind an Acceptor, without its own signal handling: draining comes before
    closing."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        settings: HttpSettings,
        connections: Connections,
        *,
        listener_is_shared: bool = False,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._listener_is_shared = listener_is_shared
        self._connections = connections
        self.is_open = asyncio.Event()
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=HeadDeadline,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=math.ceil(CLOSE_TIMEOUT_S),
        )
        super().__init__(config)

    def exit_within(self, timeout_s: float) -> None:
        """Accept no more connections, and end once every client has taken its answer. After
        ``timeout_s`` the remaining answers are cut off."""
        self.config.timeout_graceful_shutdown = math.ceil(timeout_s)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._acceptor = Acceptor(self._listener, self._protocol, self._connections)
        self._acceptor.open()
        self.is_open.set()

    def hand_over(self) -> None:
        """Accept no more connections, and close each one after its next answer. Later connections
        are refused by the kernel, unless another process keeps the listener."""
        self._acceptor.stop()
        if not self._listener_is_shared:
            self._listener.close()
        self._connections.closing = True
        for connection in list(self.server_state.connections):
            assert isinstance(connection, HeadDeadline), "a connection of another protocol"
            connection.close_after_answer()

    def accept_again(self) -> None:
        """Accept connections again, since no other process will."""
        if self._listener_is_shared:
            self._acceptor.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptor.close()
        await super().shutdown(sockets=[])
        if self.server_state.tasks:  # they were cancelled, and record what they had not sent
            await asyncio.wait(self.server_state.tasks, timeout=CLOSE_TIMEOUT_S)

    def _protocol(self) -> asyncio.Protocol:
        return HeadDeadline(
            self.config,
            self.server_state,
            self.lifespan.state,
            self._settings,
            self._connections,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host`` and ``port``. Raises ValueError that names the port if it
    cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"port: cannot listen on {host}:{port}: {reason}") from None
