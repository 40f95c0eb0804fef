"""When Python searches for cyclic garbage: a full search stops every stream for as long as it
takes, which is 0.1 s for each thousand open requests.

What start-up made is never searched again, what is new is searched often and quickly, and a full
search is left for when nobody waits. Ended requests hold no cycles to speak of: reference counts
free them.
"""

import gc

# Net new objects to a search of the newest; such searches to one of the middle-aged; and those to
# a full one: five million objects that nothing freed.
THRESHOLDS = (2_000, 5, 500)


def freeze_startup_objects() -> None:
    """To be called once, when start-up is over."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


class Sweeper:
    """Searches in full when idle, once after work."""

    def __init__(self) -> None:
        self._swept_after = 0

    def tick(self, num_open: int, num_accepted: int) -> None:
        """``num_open`` requests are open, ``num_accepted`` have come since the start."""
        if num_open == 0 and num_accepted > self._swept_after:
            self._swept_after = num_accepted
            gc.collect()
