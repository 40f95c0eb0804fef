"""When a service that died may start again. Pure: told the time, keeps no clock."""

from dataclasses import dataclass

_SERVED_S = 1.0


@dataclass
class Restarts:
    """Delays double from ``first_s`` to ``max_s``, and from the start after ``steady_s`` of life.

    After ``max_failed_starts`` in a row that never got ready there is no next time; None: always.
    """

    first_s: float = 0.5
    max_s: float = 30.0
    steady_s: float = 60.0
    retry_s: float = 2.0
    max_failed_starts: int | None = 3
    _last_s: float = 0.0
    _num_failed_starts: int = 0

    def died(
        self,
        *,
        ready_for_s: float | None,
        others_serve: bool = False,
        try_again: bool = False,
        planned: bool = False,
    ) -> float | None:
        """Seconds to wait before the next start; None to give up.

        ``ready_for_s`` is how long the process had been ready, None if it never was. While
        ``others_serve`` in its place there always is a next time: one that cannot come back, for
        want of a GPU that is fit, is no reason to end the others. One that says ``try_again``, for
        something else that is not there yet, is no failed start, and tries every ``retry_s``. A
        ``planned`` end after some seconds of service is no death: the next start follows at once.
        """
        if try_again:
            return self.retry_s
        if planned and ready_for_s is not None and ready_for_s >= _SERVED_S:
            return 0.0
        self._num_failed_starts = self._num_failed_starts + 1 if ready_for_s is None else 0
        limit = self.max_failed_starts
        if limit is not None and self._num_failed_starts >= limit and not others_serve:
            return None
        steady = ready_for_s is not None and ready_for_s >= self.steady_s
        last_s = 0.0 if steady else self._last_s
        self._last_s = min(last_s * 2 or self.first_s, self.max_s)
        return self._last_s
