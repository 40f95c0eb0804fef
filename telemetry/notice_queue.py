"""Queue of notices that the supervisor's socket cannot take at the moment.

A Unix socket holds few datagrams (net.unix.max_dgram_qlen, often 10). A notice that fits is sent at
once by its caller. One that does not is sent by a thread, behind those that wait already.
"""

import atexit
import socket
import threading
from collections import deque
from typing import NamedTuple

_RETRY_S = 1.0
_EXIT_S = 5.0
"""How long the process's end waits for notices that must arrive."""


class Notice(NamedTuple):
    """One datagram. ``must_arrive``: no later notice replaces it."""

    address: str
    datagram: bytes
    must_arrive: bool


class NoticeQueue:
    """Sends notices in order, and retries each until it is taken or its socket is gone. A waiting
    notice that need not arrive is dropped when a later one waits behind it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Notice] = deque()
        self._thread: threading.Thread | None = None

    def send(self, address: str, datagram: bytes, *, must_arrive: bool) -> None:
        """Send a notice, or queue it. Neither raises nor waits."""
        notice = Notice(address, datagram, must_arrive)
        with self._changed:
            if not self._waiting and _taken(notice, within_s=0.0):
                return
            if self._waiting and not self._waiting[-1].must_arrive:
                self._waiting.pop()
            self._waiting.append(notice)
            self._changed.notify_all()
            if self._thread is None:
                # A daemon thread: a supervisor that hangs must not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
                self._thread.start()
                atexit.register(self.flush)

    def flush(self, within_s: float = _EXIT_S) -> None:
        """Wait until no notice waits that must arrive."""
        with self._changed:
            self._changed.wait_for(lambda: not any(n.must_arrive for n in self._waiting), within_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                notice = self._waiting[0]
            taken = _taken(notice, within_s=_RETRY_S)
            with self._changed:
                if taken and self._waiting[0] is notice:  # else a later notice has replaced it
                    self._waiting.popleft()
                    self._changed.notify_all()


def _taken(notice: Notice, within_s: float) -> bool:
    """True if the notice has been sent, or if its socket is gone: a service runs on without a
    supervisor that listens. False if the queue is still full after ``within_s``."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            # NOTE: only a connected socket waits for room at the other end. ``sendto`` would
            # retry all the time, which takes a core.
            sock.connect(notice.address)
            sock.settimeout(within_s)
            sock.send(notice.datagram)
    except (BlockingIOError, TimeoutError):
        return False
    except OSError:
        pass
    return True
