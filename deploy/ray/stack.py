"""``baton up`` as the child of a Ray Serve replica.

The replica's process starts it and reads its URL from its ready line. The stack ends by SIGTERM,
and dies with the replica (deploy/die_with_parent.py): Ray kills replicas, and whole nodes.
"""

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from deploy.managed_process import ManagedProcess, describe_exit
from deploy.services import Service
from transport.wire.errors import BatonError

log = logging.getLogger("ray.serve")

_READY = re.compile(r"^ready: (http://\S+)")
_KILL_S = 5.0


class StackEnded(BatonError):
    """``baton up`` ended before it was ready; the message has its last lines."""


def up_service(
    environ: Mapping[str, str], settings: Mapping[str, str], *, host: str, port: int, drain_s: float
) -> Service:
    """``baton up`` at ``host``:``port``, with ``settings`` over the variables of ``environ``. Ray's
    own variables are left out: one of them may be the key to the cluster."""
    ours = {
        "BATON_HOST": host,
        "BATON_PORT": str(port),
        "BATON_DRAIN_TIMEOUT": f"{drain_s:g}",
        "COLUMNS": "200",  # its lines go to a file
    }
    own = {name: value for name, value in environ.items() if not name.startswith("RAY_")}
    env = {**own, **settings, **ours, "PYTHONUNBUFFERED": "1"}
    env.pop("NOTIFY_SOCKET", None)  # of Ray's own supervisor
    return Service("baton up", (sys.executable, "-m", "deploy.cli", "up"), env)


class Stack:
    """One ``baton up``. Create it in a coroutine, on a thread that lives as long as this process.

    ``url`` is valid once ``start`` has returned; ``ended`` says why it serves no longer.
    """

    def __init__(self, service: Service, tell: Callable[[str], None] = log.info) -> None:
        """Start it. Raises OSError if that is not possible."""
        self._tell = tell
        self._process = ManagedProcess(service)
        self._running = asyncio.create_task(self._process.run(self._on_line))
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.url = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        """Wait until it is ready. It may be silent for ten minutes at most (managed_process.py).
        Raises StackEnded."""
        either: list[asyncio.Future[Any]] = [self._url, self._running]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._url.done():
            lines = "\n".join(self._process.last_lines)
            raise StackEnded(f"baton up has ended: {self.ended}\n{lines}")
        self.url = self._url.result()

    @property
    def ended(self) -> str:
        """Why it ended; "" while it runs."""
        if not self._running.done():
            return ""
        return self._process.error or describe_exit(self._running.result())

    async def stop(self, deadline_s: float) -> None:
        """Send SIGTERM, and SIGKILL at the deadline: its guardian cleans up then."""
        if not self._running.done():
            self._process.terminate()
            await asyncio.wait({self._running}, timeout=deadline_s)
        if not self._running.done():
            self._tell(f"baton up has not ended within {deadline_s:g} s; killing it")
            self._process.kill()
            await asyncio.wait({self._running}, timeout=_KILL_S)

    def _on_line(self, line: str) -> None:
        self._tell(line)
        found = _READY.match(line)
        self._process.progressed(line, ready=found is not None)
        if found and not self._url.done():
            self._url.set_result(found[1])
