"""The parts of a request and of its answer that are passed on between a client and a node."""

from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import quote, urlsplit

from starlette.requests import Request

from coordinator.http.answer import sse
from coordinator.http.errors import ApiError
from coordinator.http.messages.error_form import is_messages, messages_error

_OF_A_CONNECTION = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_REPLACED = frozenset({"host", "content-length", "expect"})
# Added by Ray's proxy. The id is that of the request to the node: the client's, or Ray's own.
_ADDED_BY_RAY = frozenset({"date", "server", "x-request-id"})
NODE_HEADER = b"x-baton-node"


def target(request: Request) -> str:
    """Path and query, without the application's route prefix."""
    scope = request.scope
    path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(path, safe="/:@!$&'()*+,;=-._~") + (f"?{query}" if query else "")


def request_headers(request: Request) -> list[tuple[str, str]]:
    dropped = _OF_A_CONNECTION | _REPLACED
    with suppress(ValueError):  # of a malformed address: the node refuses it
        if urlsplit(request.headers.get("origin", "")).netloc == request.headers.get("host", ""):
            dropped |= {"origin"}  # it is the service's own page, but the node has another address
    return [(name, value) for name, value in request.headers.items() if name not in dropped]


def response_headers(
    raw_headers: Iterable[tuple[bytes, bytes]], node: str
) -> list[tuple[bytes, bytes]]:
    """The headers to pass on, in lower case, with one that names the replica."""
    dropped = {name.encode() for name in _OF_A_CONNECTION | _ADDED_BY_RAY}
    lower = [(name.lower(), value) for name, value in raw_headers]
    return [pair for pair in lower if pair[0] not in dropped] + [(NODE_HEADER, node.encode())]


def last_events(path: str, error: ApiError) -> bytes:
    """The end of a stream whose node is lost, in the form of the path's API. The stream may have
    broken off within an event, so a blank line ends that."""
    if is_messages(path):
        return b"\n\n" + sse(messages_error(error.status, error.message, error.code, ""), "error")
    if path.startswith("/v1/responses"):
        body = error.body()["error"]
        told = {"type": "error", **{name: body[name] for name in ("code", "message", "param")}}
        return b"\n\n" + sse(told, "error")
    return b"\n\n" + sse(error.body()) + b"data: [DONE]\n\n"
