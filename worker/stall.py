"""Ends a worker whose loop no longer turns, for example in an endless wait for its GPU, and one
whose end does not come.

Such waits (an event, a stream) have no deadline, and Python cannot interrupt them. So a thread of
the interpreter (``faulthandler``), which needs neither the GIL nor the loop, writes the stacks of
all threads to stderr and ends the process with status 1. The requests are retried on other workers
when the coordinator has heard nothing for ``dead_after_s``, and the supervisor restarts the
process."""

import faulthandler
import signal
import time

END_S = 15
"""How long a worker may take to close what it has open. Without memory a new thread may never
start, and Python waits for it without end."""
STDERR = 2
_REARM_EVERY_S = 1.0
"""Arming ends one thread and starts another: too much for every round of the loop."""


def end_within(seconds: int) -> None:
    """End this process by SIGALRM unless it has ended by then. The kernel needs neither a thread
    nor memory of the process for that."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


class StallGuard:
    """Ends the process if ``moved`` was not called for ``timeout_s``, less at most a second or a
    quarter of it; 0: never. One per process."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._rearm_at = 0.0

    def moved(self) -> None:
        """Note that the loop begins a round."""
        now = time.monotonic()
        if self._timeout_s == 0 or now < self._rearm_at:
            return
        self._rearm_at = now + min(_REARM_EVERY_S, self._timeout_s / 4)
        faulthandler.dump_traceback_later(self._timeout_s, file=STDERR, exit=True)

    def stop(self) -> None:
        self._rearm_at = 0.0
        faulthandler.cancel_dump_traceback_later()
