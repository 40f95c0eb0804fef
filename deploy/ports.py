"""The address to listen on, and its URL."""

import errno
import socket

DEFAULT_URL = "http://127.0.0.1:8000"
_BACKLOG = 65_535  # the kernel takes net.core.somaxconn if that is less


def require_port(port: int) -> None:
    """Raises ValueError naming the setting, unless ``port`` may be a port."""
    if not 0 <= port <= 65_535:
        raise ValueError(f"--port: {port} is not between 0 (any free port) and 65535")


def claim_port(host: str, port: int) -> int:
    """Return ``port`` if a socket can listen on it at ``host``; for 0, a free port.

    Raises ValueError naming the setting. Another process may still take it in the meantime.
    """
    with listen_at(host, port) as listener:
        return int(listener.getsockname()[1])


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host`` on ``port``, 0: any free one. Raises ValueError naming the
    setting."""
    require_port(port)  # the resolver takes the rest of a larger number
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ValueError(f"--host: cannot resolve {host}: {error}") from error
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ValueError(_reason(host, port, error)) from error
    return listener


def base_url(host: str, port: int) -> str:
    """``http://HOST:PORT``, IPv6 addresses in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reachable(host: str) -> str:
    """The address at which this machine reaches a socket that listens at ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port: {port} on {host} is in use by another process; choose another"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host: {host} is not an address of this machine"
    return f"--port: cannot listen on {port} on {host}: {error.strerror}"
