"""When a service that ended starts again. Pure: it is told durations and keeps no clock."""

from dataclasses import dataclass

_SERVED_S = 1.0


@dataclass
class RestartPolicy:
    """Delays double from ``first_s`` to ``max_s``, and begin at ``first_s`` again after a process
    that was ready for ``steady_s``. After ``max_failed_starts`` processes in a row that never got
    ready the service is given up."""

    first_s: float = 0.5
    max_s: float = 30.0
    steady_s: float = 60.0
    retry_s: float = 2.0
    max_failed_starts: int = 3
    _last_s: float = 0.0
    _num_failed_starts: int = 0

    def delay_s(
        self,
        *,
        ready_for_s: float | None,
        keep_trying: bool = False,
        try_again: bool = False,
        planned: bool = False,
    ) -> float | None:
        """Seconds until the next start; None to give the service up.

        ``ready_for_s`` is how long the process had been ready, None if it never was.
        ``keep_trying`` never gives up. ``try_again``: the process ended because something else is
        missing for the time being; that is no failed start, and the next follows after
        ``retry_s``. ``planned``: the process was told to end; after a second of service the next
        one starts at once.
        """
        if try_again:
            return self.retry_s
        if planned and ready_for_s is not None and ready_for_s >= _SERVED_S:
            return 0.0
        self._num_failed_starts = self._num_failed_starts + 1 if ready_for_s is None else 0
        if self._num_failed_starts >= self.max_failed_starts and not keep_trying:
            return None
        steady = ready_for_s is not None and ready_for_s >= self.steady_s
        last_s = 0.0 if steady else self._last_s
        self._last_s = min(last_s * 2 or self.first_s, self.max_s)
        return self._last_s
