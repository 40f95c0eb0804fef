"""The path below which a proxy serves the API, such as /baton: vLLM's ``--root-path``."""

import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_AFTER_HOST = re.compile(r"^(https?://[^/]*)?(?=/)")


def checked_root_path(path: str) -> str:
    """``path`` without a slash at its end. Raises ValueError if it is no path."""
    path = path.rstrip("/")
    if not _ROOT_PATH.fullmatch(path) or {"..", "."} & set(path.split("/")):
        raise ValueError(f"root_path: {path!r} is not a path such as /baton")
    return path


class RootPath:
    """Removes ``root_path`` from the paths of requests, and adds it to redirects. A proxy may have
    removed it already; then, and for probes of the server itself, the path stays as it is."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_below(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if location := headers.get("location"):
                    headers["location"] = _AFTER_HOST.sub(rf"\g<0>{self._root}", location, count=1)
            await send(message)

        await self._app(self._inner(scope), receive, send_below)

    def _inner(self, scope: Scope) -> Scope:
        path: str = scope["path"]
        if not path.startswith(f"{self._root}/"):
            return scope
        raw: bytes = scope.get("raw_path") or path.encode()
        length = len(self._root)
        return {**scope, "path": path[length:], "raw_path": raw[length:]}
