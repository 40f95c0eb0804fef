"""Tokens a second over the last seconds. Pure."""

METER_WINDOW_S = 5


class TokenMeter:
    """How many tokens a second a worker has computed over the last ``METER_WINDOW_S``. Counts by
    whole seconds; ``now`` is of any clock that does not go back."""

    def __init__(self) -> None:
        self._seconds = [-1] * (METER_WINDOW_S + 1)
        self._counts = [0] * (METER_WINDOW_S + 1)

    def add(self, num_tokens: int, now: float) -> None:
        second = int(now)
        place = second % (METER_WINDOW_S + 1)
        if self._seconds[place] != second:
            self._seconds[place], self._counts[place] = second, 0
        self._counts[place] += num_tokens

    def rate(self, now: float) -> float:
        """Over the last whole seconds; the one under way does not count yet."""
        since, until = int(now) - METER_WINDOW_S, int(now)
        counted = zip(self._seconds, self._counts, strict=True)
        return sum(n for at, n in counted if since <= at < until) / METER_WINDOW_S
