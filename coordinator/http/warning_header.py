"""The header ``x-baton-warning``: says which parts of a request the server did not act on, although
it serves the request."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

WARNING_HEADER = "x-baton-warning"
_IN_SCOPE = "baton.warnings"
_MAX_LEN = 2_048
_MORE = "; and more"


class Warnings:
    """Adds the warnings of a request to its response, joined by semicolons."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_warnings(message: Message) -> None:
            if message["type"] == "http.response.start" and (found := scope.get(_IN_SCOPE)):
                header = (WARNING_HEADER.encode(), _joined(found))
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope, receive, send_with_warnings)


def warn(scope: Scope, warning: str) -> None:
    """Note a warning for the response to this HTTP request."""
    scope.setdefault(_IN_SCOPE, []).append(warning)


def _joined(warnings: list[str]) -> bytes:
    """The value of the header: printable ASCII, at most ``_MAX_LEN`` bytes."""
    text = "; ".join(dict.fromkeys(warnings))[: _MAX_LEN + 1]
    escaped = "".join(
        char if " " <= char <= "~" else ascii(char).strip("'\"") for char in text
    ).encode("ascii")
    return (
        escaped if len(escaped) <= _MAX_LEN else escaped[: _MAX_LEN - len(_MORE)] + _MORE.encode()
    )
