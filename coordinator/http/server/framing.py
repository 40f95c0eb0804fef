"""The framing of HTTP/1 messages, where the parser and uvicorn leave it open (RFC 9112).

A request that two servers could read in two ways is refused. An answer of unknown length to an
HTTP/1.0 client, which knows no chunks, ends with its connection.
"""

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from coordinator.http.errors import ApiError

_FORBIDDEN_TRAILERS = frozenset({b"content-length", b"host", b"transfer-encoding"})


def invalid_http(message: str) -> ApiError:
    """A 400 for bytes that are not a valid HTTP/1.1 request."""
    return ApiError(400, message, code="invalid_http", headers={"connection": "close"})


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises ApiError for a head without exactly one Host, and for a Transfer-Encoding that is not
    chunked. ``headers`` have names in lower case."""
    hosts = codings = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            codings += 1
            if version == "1.0" or codings > 1 or value.strip().lower() != b"chunked":
                raise invalid_http("Transfer-Encoding may only be chunked, and only in HTTP/1.1")
    if hosts > 1 or (hosts == 0 and version != "1.0"):
        raise invalid_http(f"a request needs one Host header, got {hosts}")


def check_trailer(name: bytes) -> None:
    """Raises ApiError for a trailer that would change how the request is read."""
    if name.lower() in _FORBIDDEN_TRAILERS:
        raise invalid_http(f"{name.decode('latin-1')} must not follow a body")


class CheckedBody:
    """An app that is told when its request's chunked body turns out to be malformed.

    uvicorn tells it nothing: it would wait for the rest of the body. ``error`` returns the fault,
    once there is one, while the body is incomplete. ``receive`` raises it while the app can still
    answer with it; afterwards the client counts as disconnected."""

    def __init__(
        self, app: ASGIApp, cycle: RequestResponseCycle, error: Callable[[], ApiError | None]
    ) -> None:
        self._app = app
        self._cycle = cycle
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self._cycle

        async def receive_checked() -> Message:
            if self._error() is None:
                message = await receive()
            if (error := self._error()) is None:
                return message
            if cycle.response_started:
                return {"type": "http.disconnect"}
            raise error

        await self._app(scope, receive_checked, send)


class Unframed:
    """Sends an answer without Content-Length as it is, without chunks: the end of the connection is
    the end of the answer."""

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
