"""The server under test: its address, the API key for it, and how long it may take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import urlsplit

from typer import Option

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server. ``prefix`` precedes every path and has no slash at its end.

    Made by ``endpoint``; ``api_key`` is sent as a bearer token and never shown.
    """

    scheme: str
    host: str
    port: int
    prefix: str
    api_key: str | None = field(default=None, repr=False)
    verify_tls: bool = True

    @property
    def url(self) -> str:
        """The address as it is shown and recorded: without key, user and password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def is_local(self) -> bool:
        """True if the server is certainly on this machine."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def endpoint(url: str, *, api_key: str | None = None, verify_tls: bool = True) -> Endpoint:
    """Parse ``http[s]://host[:port][/prefix][/v1]``. Raises ValueError naming the setting ``url``.

    A ``/v1`` at the end is dropped: it is part of the paths (``/v1/completions``), because
    ``/tokenize`` and ``/health`` lie beside it.
    """
    # In a malformed URL the place of a password is unknown: do not show it at all.
    shown = repr(url) if "@" not in url else "what was given"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"url: {shown} is not a URL") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"url: {shown} is not http://HOST:PORT or https://HOST")
    if "@" in url or parts.query or parts.fragment:
        raise ValueError("url: no query, fragment, user or password; keys go in api_key")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise ValueError(f"url: {shown} has no valid port") from None
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise ValueError("api_key: has characters that no header can carry")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Endpoint(parts.scheme, parts.hostname, port, prefix, api_key or None, verify_tls)


@dataclass(frozen=True)
class Deadlines:
    """Longest waits of a request, in seconds. ``first_byte_s`` includes the server's queue, so it
    is long by default. ``first_byte_s`` and ``stall_s`` are ``request_s`` if they are infinite."""

    connect_s: Annotated[float, Option(help="Seconds to a connection.")] = 10.0
    first_byte_s: Annotated[
        float, Option(help="Seconds to the first byte; inf: as --request-s.")
    ] = 300.0
    stall_s: Annotated[
        float, Option(help="Seconds of silence within a response; inf: as --request-s.")
    ] = 60.0
    request_s: Annotated[float, Option(help="Seconds for a whole request.")] = 900.0

    def __post_init__(self) -> None:
        for name in ("first_byte_s", "stall_s"):
            if getattr(self, name) == math.inf:
                object.__setattr__(self, name, self.request_s)
        for name in ("connect_s", "first_byte_s", "stall_s", "request_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0, or not finite")
