"""Signals as something to select on."""

import signal
import socket


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP, from now until the process ends; readable when one has come.

    SIGHUP stays ignored where it was (nohup). SIGINT does not: shells ignore it for what they
    run in the background, yet whoever sends it to us by number means it.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        return self._reader.fileno()

    def received(self) -> list[signal.Signals]:
        """What has come since the last call, in order; one of several equal ones may be lost."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []
