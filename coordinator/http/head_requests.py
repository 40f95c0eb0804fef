"""The middleware by which every GET route answers HEAD too: with the same head, and no body."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
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
            scope["route"] = as_get.get("route")  # for the metrics, which are kept outside of this
