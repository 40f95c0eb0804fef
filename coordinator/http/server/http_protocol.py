"""uvicorn's HTTP protocol, for clients that are old, ask for another one, or read nothing: these
are disconnected."""

import asyncio
import http
import logging
from typing import Any, cast

import httptools
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from coordinator.http.errors import ApiError

_OF_UPGRADES = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """With ``write_timeout_s`` for a client to take anything of what waits for it, on every route.

    - To HTTP/1.0 an answer of unknown length is sent without chunks and ends with the connection.
    - What is not HTTP gets an error of our shape, unless an answer is under way there.
    - h2c, which clients of HTTP/2 offer along with a request, is ignored, and the request served;
      other upgrades, WebSocket among them, are refused.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        write_timeout_s: float,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._write_timeout_s = write_timeout_s
        self._write_deadline: WriteDeadline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._write_deadline = WriteDeadline(transport, self._write_timeout_s, self.loop)
        super().connection_made(cast(asyncio.Transport, self._write_deadline))

    def connection_lost(self, exc: Exception | None) -> None:
        self._write_deadline.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            # NOTE: the parser stops behind the head, and takes the body for the other protocol's.
            self._turn_down(data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(ApiError(400, "this is not an HTTP/1.1 request", code="invalid_http"))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _turn_down(self, rest: bytes) -> None:
        offered = [value.lower() for name, value in self.headers if name == b"upgrade"]
        if offered != [b"h2c"]:
            message = "no upgrade is supported; answers stream as server-sent events"
            self._refuse(ApiError(400, message, code="upgrade_not_supported"))
            return
        headers = [
            b"%b: %b\r\n" % (name, value)
            for name, value in self.headers
            if name not in _OF_UPGRADES
        ]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (
            self.parser.get_method(), self.url, b"".join(headers)
        )  # fmt: skip
        self.parser = httptools.HttpRequestParser(self)
        HttpProtocol.data_received(self, head + rest)

    def _refuse(self, error: ApiError) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        body = msgspec.json.encode(error.body())
        status = http.HTTPStatus(error.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _Unframed(app, cycle)
        super()._start_asgi_task(cycle, app)


class _Unframed:
    """An app whose answer ends with the connection, where it does not tell its length."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle, unframed = self._cycle, False
        cycle.waiting_for_100_continue = False

        async def send_unframed(message: Message) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unframed = b"content-length" not in names
                if unframed:
                    cycle.chunked_encoding = False
            elif unframed:
                # NOTE: uvicorn compares this with what it sends, to the byte.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_unframed)


log = logging.getLogger(__name__)

_CHECKS = 4  # within the time that a client has


class WriteDeadline:
    """Aborts a transport whose client takes no byte for ``timeout_s`` while some wait.

    It stands in for ``transport``, so that it sees what is written; looks only while something
    waits, and after up to a quarter of the time more.
    """

    def __init__(
        self, transport: asyncio.Transport, timeout_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._loop = loop
        self._num_written = 0
        self._num_taken = 0  # when it was last looked at
        self._taken_at = 0.0
        self._next_look: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._num_written += len(data)
        self._transport.write(data)
        if self._next_look is None:
            self._taken_at = self._loop.time()
            self._look_later()

    def stop(self) -> None:
        """The connection is closed."""
        if self._next_look is not None:
            self._next_look.cancel()

    def _look(self) -> None:
        self._next_look = None
        num_waiting = self._transport.get_write_buffer_size()
        num_taken = self._num_written - num_waiting
        if num_waiting == 0:
            return
        now = self._loop.time()
        if num_taken != self._num_taken:
            self._num_taken, self._taken_at = num_taken, now
        elif now - self._taken_at >= self._timeout_s:
            log.info("the client reads nothing; %d bytes are dropped", num_waiting)
            self._transport.abort()
            return
        self._look_later()

    def _look_later(self) -> None:
        self._next_look = self._loop.call_later(self._timeout_s / _CHECKS, self._look)
