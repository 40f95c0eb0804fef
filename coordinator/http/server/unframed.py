"""Answers of unknown length to HTTP/1.0 clients, which know no chunks."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


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
