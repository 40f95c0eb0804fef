"""The middleware that bounds the length of a body."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.errors import ApiError

_LINGER_S = 0.7


class BodyLimit:
    """Refuses a body over ``max_bytes`` with 413: by its declared length before any of it is read,
    else as soon as too much has arrived."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isascii() or not declared.isdigit():
            await ApiError(400, "Content-Length is not a number").response()(scope, receive, send)
            return
        num_bytes = int(declared) if len(declared) <= 18 else self._max_bytes + 1

        async def send_and_linger(message: Message) -> None:
            """Send an answer to a body that is too long, and end it a moment later.

            NOTE: a connection that is closed while its client still writes is reset, and the client
            may never see the answer. So the answer leaves at once, but its end waits a moment while
            what is on its way is read and dropped.
            """
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if not last or num_bytes <= self._max_bytes:
                await send(message)
                return
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
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
