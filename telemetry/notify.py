"""Sends a service's state to its supervisor by the sd_notify protocol (sd_notify(3)).

Each notice is one datagram of ``KEY=value`` lines to the socket in ``NOTIFY_SOCKET``; without that
variable none is sent. The supervisor is systemd, or ``baton up``, which also sets
``BATON_SERVICE_NAME`` to tell its services apart. Keys: ``STATUS`` (a line for people),
``READY=1``, ``STOPPING=1``; Baton's own begin with ``X_BATON_``.

For a health check that reads a file, as in a container, ``BATON_STATE_FILE`` names the file: its
content is ``ready`` or ``stopping``.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

from telemetry.notice_queue import NoticeQueue

_QUEUE = NoticeQueue()
_LASTING = frozenset({"READY", "STOPPING"})


def notify(**fields: str | int | float) -> None:
    """Send ``fields``. Neither raises nor waits. While the supervisor's queue is full, READY and
    STOPPING are retried until they are taken, and of other notices the last one.

    >>> notify(READY=1, STATUS="serving")
    """
    _write_state(fields)
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    must_arrive = not _LASTING.isdisjoint(fields)
    fields = {**fields, "X_BATON_PID": os.getpid()}
    if name := os.environ.get("BATON_SERVICE_NAME"):
        fields["X_BATON_SERVICE"] = name
    lines = [f"{key}={str(value).replace(chr(10), ' ')}" for key, value in fields.items()]
    _QUEUE.send(address, "\n".join(lines).encode(), must_arrive=must_arrive)


def flush() -> None:
    """Wait, for seconds at most, until the supervisor has taken READY and STOPPING."""
    _QUEUE.flush()


def _write_state(fields: dict[str, str | int | float]) -> None:
    state = "stopping" if "STOPPING" in fields else "ready" if "READY" in fields else ""
    path = os.environ.get("BATON_STATE_FILE", "")
    if path and state:
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(f"{state}\n")


class Progress:
    """Reports the progress of one long step, at most five times a second and at its end.

    >>> Progress("loading weights")(0.4)
    """

    INTERVAL_S = 0.2

    def __init__(self, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._text = text
        self._clock = clock
        self._next_at = -math.inf

    def __call__(self, fraction: float | None = None) -> None:
        """Report that ``fraction`` of the step is done, from 0 to 1; None: not known."""
        now = self._clock()
        if now < self._next_at and (fraction is None or fraction < 1.0):
            return
        self._next_at = now + self.INTERVAL_S
        if fraction is None:
            notify(STATUS=self._text)
            return
        fraction = min(max(fraction, 0.0), 1.0)
        notify(STATUS=f"{self._text} {fraction:.0%}", X_BATON_PROGRESS=f"{fraction:.3f}")
