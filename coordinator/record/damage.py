"""What other programs wrote to Baton's keys in Redis: counted, and logged once a minute at most."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

log = logging.getLogger(__name__)

SAY_EVERY_S: Final = 60.0


class Damage:
    """Since the start: ``num_replaced`` keys held values of another type and were written anew,
    ``num_unreadable`` times a request's record could not be read. ``clock`` gives monotonic
    seconds; each kind is logged at most once in ``SAY_EVERY_S``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_replaced = 0
        self.num_unreadable = 0
        self._clock = clock
        self._said_at: dict[str, float] = {}

    def replaced(self, keys: Sequence[str]) -> None:
        """``keys`` (each with the type it had) were not as Baton writes them."""
        self.num_replaced += len(keys)
        if self._is_due("replaced"):
            log.error(
                "%d keys of Baton in Redis held values of another type since the start and were "
                "replaced, the last one %s; see which other program writes there",
                self.num_replaced,
                keys[-1],
            )

    def unreadable(self, key: str, why: str) -> None:
        """What ``key`` holds is no record."""
        self.num_unreadable += 1
        if self._is_due("unreadable"):
            log.warning("left out %s: %s", key, why)

    def _is_due(self, kind: str) -> bool:
        now = self._clock()
        due = kind not in self._said_at or now - self._said_at[kind] >= SAY_EVERY_S
        if due:
            self._said_at[kind] = now
        return due
