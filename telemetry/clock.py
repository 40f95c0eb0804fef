"""Unix time that never steps: the wall clock of when it was made, moved on by the monotonic one.

For time stamps of one process that are also subtracted from each other.
"""

import time


class SteadyClock:
    """Call it for Unix seconds."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset_s + time.monotonic()
