"""Sends a service's state to its supervisor by the sd_notify protocol (sd_notify(3)).

Each notice is one datagram of ``KEY=value`` lines to the socket in ``NOTIFY_SOCKET``; without that
variable none is sent. The supervisor is systemd, or ``baton up``, which also sets
``BATON_SERVICE_NAME`` to tell its services apart. Keys: ``STATUS`` (a line for people),
``READY=1``, ``STOPPING=1``; Baton's own begin with ``X_BATON_``.

For a health check that reads a file, as in a container, ``BATON_STATE_FILE`` names the file: its
content is ``ready`` or ``stopping``.
"""

import os
import socket
from contextlib import suppress

_SEND_TIMEOUT_S = 1.0


def notify(**fields: str | int | float) -> None:
    """Send ``fields``. Does not raise; waits at most a second while the queue is full.

    >>> notify(READY=1, STATUS="serving")
    """
    _write_state(fields)
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    fields = {**fields, "X_BATON_PID": os.getpid()}
    if name := os.environ.get("BATON_SERVICE_NAME"):
        fields["X_BATON_SERVICE"] = name
    lines = [f"{key}={str(value).replace(chr(10), ' ')}" for key, value in fields.items()]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_SEND_TIMEOUT_S)
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:
        pass  # the service runs on without a supervisor that listens


def _write_state(fields: dict[str, str | int | float]) -> None:
    state = "stopping" if "STOPPING" in fields else "ready" if "READY" in fields else ""
    path = os.environ.get("BATON_STATE_FILE", "")
    if path and state:
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(f"{state}\n")


def progress(text: str, fraction: float) -> None:
    """Send the progress of a long step; ``fraction`` from 0 to 1."""
    fraction = min(max(fraction, 0.0), 1.0)
    notify(STATUS=f"{text} {fraction:.0%}", X_BATON_PROGRESS=f"{fraction:.3f}")
