"""Keeps foreign web pages from using a server without API keys.

A browser sends a page's POST to any server, and only hides the answer: such a page could have this
server compute for it. But the browser says which origin the page has.
"""

from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.http.errors import ApiError, quote

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_WEB_PAGES = ("http://", "https://")
_HIDDEN = "null"
"""The origin of pages whose browser does not tell it: sandboxed frames, files, redirects."""


class AllowedOrigins:
    """Answers 403 to requests other than GET, HEAD and OPTIONS from web pages, unless the page's
    origin is one of ``origins`` or the server itself. Programs send no origin; browser extensions
    and desktop programs send one of a scheme of their own, which no web page can have."""

    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        origin = headers.get(b"origin", "")
        if scope["method"] in _READING or self._is_allowed(origin, headers.get(b"host", "")):
            await self._app(scope, receive, send)
            return
        message = (
            f"pages of the origin {quote(origin)} may not use this server; BATON_ALLOWED_ORIGINS "
            "lists those that may"
        )
        await ApiError(403, message, code="origin_not_allowed").response()(scope, receive, send)

    def _is_allowed(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        if origin != _HIDDEN and not origin.lower().startswith(_OF_WEB_PAGES):
            return True
        with suppress(ValueError):  # of a malformed address
            return urlsplit(origin).netloc.lower() == host.lower() != ""
        return False
