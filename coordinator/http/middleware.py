"""What every request passes before it reaches a route, as plain ASGI. Outermost first:

1. RootPath (root_path.py), if it is set, RequestThrottle (request_throttle.py), RequestId,
   Observed.
2. AllowedHosts (allowed_hosts.py), unless all hosts are served.
3. AllowedOrigins (allowed_origins.py), unless keys are set or all origins are allowed.
4. CORSMiddleware, if origins are allowed.
5. KeyCheck (auth/key_check.py), if keys are set.
6. BodyLimit (bodies/body_limit.py), HeadRequests, Warnings (warning_header.py).
"""

import asyncio
import logging
import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.auth.accounts import account_of
from coordinator.http.errors import CLIENT_CLOSED_REQUEST, cut_off, unhandled
from coordinator.http.messages.error_form import is_messages
from coordinator.http.response_names import NAME_PATTERN, note_name
from telemetry.logs import bind_request
from telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_NAME = re.compile(NAME_PATTERN)
_ACCEPTED = "baton.accepted"
_READS = frozenset({"GET", "HEAD"})
_NOT_NOW = 503
_METHODS = frozenset({"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestId:
    """Adopts the X-Request-Id of a client, or makes one, and returns it with every response;
    clients of the Messages API also get it as ``request-id``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        request_id = given[0].decode("latin-1") if len(given) == 1 else ""
        if _NAME.fullmatch(request_id):
            note_name(scope, request_id)
        else:
            request_id = uuid.uuid4().hex
        headers = [(b"x-request-id", request_id.encode())]
        if is_messages(scope["path"]):
            headers.append((b"request-id", request_id.encode()))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        with bind_request(request_id):
            await self._app(scope, receive, send_with_id)


class Observed:
    """Counts, times and logs every response, and turns an unhandled exception into a 500, or a 503
    without memory, with an ErrorBody. A request that is cancelled, since the coordinator ends, is a
    503 too."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = CLIENT_CLOSED_REQUEST  # until a response starts
        started_at = time.monotonic()

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.http.in_flight.inc()
        try:
            await self._app(scope, receive, send_counted)
        except asyncio.CancelledError:
            if status != CLIENT_CLOSED_REQUEST:
                raise
            await cut_off().response()(scope, receive, send_counted)
        except Exception as error:
            log.exception("unhandled error", extra={"path": scope["path"]})
            if status != CLIENT_CLOSED_REQUEST:
                raise
            await unhandled(error).response()(scope, receive, send_counted)
        finally:
            self._metrics.http.in_flight.dec()
            self._record(scope, status, time.monotonic() - started_at)

    def _record(self, scope: Scope, status: int, took_s: float) -> None:
        # A route's pattern, never the path itself: a scanner must not make a series each.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.http.responses.labels(route, method, str(status)).inc()
        self._metrics.http.seconds.labels(route).observe(took_s)
        _log_response(scope, status, took_s)


def note_accepted(scope: Scope) -> None:
    """Note that the core has accepted this HTTP request: the log line ``ended`` will follow."""
    scope[_ACCEPTED] = True


def _log_response(scope: Scope, status: int, took_s: float) -> None:
    """Log one line per request.

    Accepted requests are logged by observer.py (``ended``), which says more. Here other POST
    requests and refusals are logged at INFO; GET and HEAD at DEBUG, since pages, probes and
    scrapers repeat them. ``status``: the status of the answer, or CLIENT_CLOSED_REQUEST.
    """
    only_read = scope["method"] in _READS and (status < 400 or status == _NOT_NOW)
    level = logging.DEBUG if only_read or _ACCEPTED in scope else logging.INFO
    fields: dict[str, object] = {"status": status, "took_ms": round(took_s * 1000, 1)}
    if key := account_of(scope).name:
        fields["key"] = key  # the name; the key itself is never stored
    log.log(level, "%s %s", scope["method"], scope["path"], extra=fields)


class HeadRequests:
    """Lets every GET route answer HEAD too: with the same head, and no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        as_get = {**scope, "method": "GET"}

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            await self._app(as_get, receive, send_without_body)
        finally:
            scope["route"] = as_get.get("route")  # for Observed, which has the outer scope
