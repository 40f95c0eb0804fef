"""What every request passes before it reaches a route, as plain ASGI.

``InTurns(RequestId(Observed(CORSMiddleware(KeyCheck(BodyLimit(HeadRequests(app)))))))``: outermost
first. The others are in turns.py, key_check.py (only where keys are set) and head_requests.py; CORS
only where origins are allowed.
"""

import asyncio
import contextlib
import logging
import re
import time
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.access_log import log_response
from coordinator.http.errors import CLIENT_LEFT, ApiError, internal_error
from telemetry.logs import bind_request
from telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@#~-]{1,128}\Z")
_METHODS = frozenset({"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestId:
    """Takes over a client's X-Request-Id, or makes one, and returns it with every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        known = len(given) == 1 and _REQUEST_ID.match(given[0])
        request_id: bytes = given[0] if known else uuid.uuid4().hex.encode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        with bind_request(request_id.decode()):
            await self._app(scope, receive, send_with_id)


class Observed:
    """Counts, times and logs every response; turns an unhandled exception into a 500 with an
    ErrorBody."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_LEFT  # until a response starts
        started_at = time.monotonic()

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.http_in_flight.inc()
        try:
            await self._app(scope, receive, send_counted)
        except Exception:
            log.exception("unhandled error", extra={"path": scope["path"]})
            if status != CLIENT_LEFT:
                raise
            await internal_error().response()(scope, receive, send_counted)
        finally:
            self._metrics.http_in_flight.dec()
            self._record(scope, status, time.monotonic() - started_at)

    def _record(self, scope: Scope, status: int, took_s: float) -> None:
        # A route's pattern, never the path itself: a scanner must not make a series each.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.http_responses.labels(route, method, str(status)).inc()
        self._metrics.http_s.labels(route).observe(took_s)
        log_response(scope, status, took_s)


_LINGER_S = 0.7


class BodyLimit:
    """Refuses a body over ``max_bytes`` with 413: by its declared length before any of it is
    read, else as soon as too much has come."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isascii() or not declared.isdigit():
            await ApiError(400, "Content-Length is not a number").response()(scope, receive, send)
            return
        num_bytes = int(declared) if len(declared) <= 18 else self._max_bytes + 1

        async def send_and_linger(message: Message) -> None:
            """NOTE: a connection that is closed while its client still writes is reset, and the
            client may never see the answer. So the answer leaves at once, but its end waits a
            moment while what is on its way is read and dropped."""
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if not last or num_bytes <= self._max_bytes:
                await send(message)
                return
            await send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while (await receive()).get("more_body"):
                        pass
            await send({"type": "http.response.body", "body": b""})

        if num_bytes > self._max_bytes:
            await self._too_large().response()(scope, receive, send_and_linger)
            return
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_counted, send_and_linger)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._max_bytes} bytes",
            code="body_too_large",
            headers={"connection": "close"},
        )
