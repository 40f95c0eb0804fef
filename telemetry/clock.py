"""A Unix clock that never steps: the system clock is read once, then the monotonic clock is added.

It is for time stamps of one process that are also subtracted from each other.
"""

import time


class SteadyClock:
    """A clock; calling it returns Unix seconds."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset_s + time.monotonic()
