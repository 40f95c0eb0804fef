"""uvicorn's HTTP/1 protocol with strict framing, errors in the API's form, and a deadline for
clients that read nothing."""

import asyncio
import http
from typing import Any, cast

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from coordinator.http.errors import ApiError
from coordinator.http.server.framing import (
    CheckedBody,
    Unframed,
    check_head,
    check_trailer,
    invalid_http,
)
from coordinator.http.server.write_deadline import WriteDeadline

_OF_UPGRADES = frozenset({b"connection", b"upgrade", b"http2-settings"})


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    - A client has ``write_timeout_s`` to take anything of what waits for it, on every route.
    - A request that is malformed, or whose framing is ambiguous (framing.py), is a 400 at once.
      If an answer is running on the connection, the connection is closed after it instead.
    - An answer of unknown length to HTTP/1.0 is sent without chunks.
    - An offer of h2c, which Java's HTTP client sends with each first request, is ignored, and the
      request is served. uvicorn alone loses the body of such a request, and the next request.
      Other upgrades, WebSocket among them, are refused.
    - When the connection is lost, the running request learns it, also if others were pipelined
      behind it; these are dropped.
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
        self._running: RequestResponseCycle | None = None
        self._in_body = False
        self._body_error: ApiError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._write_deadline = WriteDeadline(transport, self._write_timeout_s, self.loop)
        super().connection_made(cast(asyncio.Transport, self._write_deadline))

    def connection_lost(self, exc: Exception | None) -> None:
        self._write_deadline.stop()
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            # NOTE: the parser stops behind the head, and takes the body for the other protocol's.
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            raised = error.__context__  # by a callback
            malformed = invalid_http(f"this is not a valid HTTP/1.1 request: {error}")
            self._refuse(raised if isinstance(raised, ApiError) else malformed)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            check_trailer(name)
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            check_head(self.parser.get_http_version(), self.headers)
            super().on_headers_complete()
            self._in_body = True

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._in_body = False
            super().on_message_complete()

    def _decline_upgrade(self, rest: bytes) -> None:
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
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if not self._in_body:  # else it was answered before its body had arrived
                self._answer(error)
            self.transport.close()
            return
        cycle.keep_alive = False
        if self._in_body:
            self._body_error = error
            cycle.message_event.set()

    def _answer(self, error: ApiError) -> None:
        body = msgspec.json.encode(error.body())
        status = http.HTTPStatus(error.status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = Unframed(app, cycle)
        elif any(name == b"transfer-encoding" for name, _ in cycle.scope["headers"]):
            app = CheckedBody(app, cycle, lambda: self._body_error if cycle.more_body else None)
        super()._start_asgi_task(cycle, app)
