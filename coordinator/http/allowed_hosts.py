"""The host names that requests may be for, against DNS rebinding.

A web page can give its own name the address of a local server. Its requests then count as requests
to its own origin, so the browser lets it read the answers. But they name the page's host."""

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.http.errors import ApiError, quote
from transport.wire.channel_keys import is_loopback

ANY = "*"
MISDIRECTED = 421


def served_hosts(bound: str, listed: Iterable[str], *, has_keys: bool) -> tuple[str, ...]:
    """The hosts to serve at the address ``bound``, beside the loopback names.

    ``listed`` are those of the setting. Without any, all hosts are served if other machines may
    reach the address, or if each request needs an API key, which no page has."""
    names = tuple(name.lower() for name in listed)
    if ANY in names or (not names and (has_keys or not is_loopback(bound))):
        return (ANY,)
    return (bound.lower(), *names)


class AllowedHosts:
    """Answers 421 to a request whose Host is neither a loopback name nor one of ``hosts``. An
    address that stands for all addresses of the machine, such as 0.0.0.0, allows every IP
    address."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._any_address = any(map(_is_unspecified, self._hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"host"), None)
        # Only HTTP/1.0 may leave it out, and no browser does.
        if given is None or self._is_allowed(_name(given.decode("latin-1"))):
            await self._app(scope, receive, send)
            return
        message = (
            f"this server is not {quote(given.decode('latin-1'))}; BATON_ALLOWED_HOSTS lists the "
            "host names that it serves besides localhost"
        )
        error = ApiError(MISDIRECTED, message, code="host_not_allowed")
        await error.response()(scope, receive, send)

    def _is_allowed(self, name: str) -> bool:
        if name in self._hosts or is_loopback(name) or name.endswith(".localhost"):
            return True
        return self._any_address and _is_address(name)


def _name(host: str) -> str:
    """The name or address in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(name: str) -> bool:
    return _is_address(name) and ip_address(name).is_unspecified
