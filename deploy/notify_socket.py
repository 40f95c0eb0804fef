"""The receiving end of telemetry/notify.py: what the services report about themselves."""

import socket
from dataclasses import dataclass
from pathlib import Path

_MAX_DATAGRAM_BYTES = 64 * 1024


@dataclass(frozen=True)
class Notice:
    """One datagram: the process that sent it, and what it says. ``fraction`` is how much of a long
    step is done, from 0 to 1; None if it does not say."""

    pid: int
    status: str | None
    ready: bool
    fraction: float | None


class NotifySocket:
    """A datagram socket bound at ``path`` in a private folder; readable when a notice waits."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[Notice]:
        """All notices that wait, in order; a datagram that is no notice is dropped."""
        notices: list[Notice] = []
        while True:
            try:
                datagram = self._socket.recv(_MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                return notices
            if (notice := parse(datagram)) is not None:
                notices.append(notice)

    def close(self) -> None:
        self._socket.close()


def parse(datagram: bytes) -> Notice | None:
    """The notice in a datagram; None if it does not name its sender."""
    lines = datagram.decode(errors="replace").split("\n")
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        pid = int(fields["X_BATON_PID"])
        progress = float(fields["X_BATON_PROGRESS"]) if "X_BATON_PROGRESS" in fields else None
    except (KeyError, ValueError):
        return None
    return Notice(pid, fields.get("STATUS"), fields.get("READY") == "1", progress)
