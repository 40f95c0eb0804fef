"""Requests to a node's stack over HTTP, from its replica and from the ingress."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

_CONNECT_S = 2.0
# A lost machine closes no connection: its loss is noticed some 12 s after its last packet.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


@dataclass(frozen=True)
class Fetched:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetcher:
    """Sends GETs to one stack, each with a deadline of ``deadline_s``."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self._url = url
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, headers: Mapping[str, str]) -> Fetched:
        """Send a GET. Raises aiohttp.ClientError and TimeoutError."""
        if self._session is None:
            self._session = new_session()
        timeout = aiohttp.ClientTimeout(total=self._deadline_s)
        url = URL(self._url + path, encoded=True)
        async with self._session.get(url, headers=headers, timeout=timeout) as answer:
            return Fetched(answer.status, dict(answer.headers), await answer.read())


def new_session() -> aiohttp.ClientSession:
    """A session without limits of time or number, as the stack has both. Bodies stay as sent."""
    connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    for level, option, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made
