"""How many tokens a second a worker has computed of late. Pure."""

WINDOW_S = 5


class TokenMeter:
    """Counts by whole seconds; ``now`` is of any clock that does not go back."""

    def __init__(self) -> None:
        self._seconds = [-1] * (WINDOW_S + 1)
        self._counts = [0] * (WINDOW_S + 1)

    def add(self, num_tokens: int, now: float) -> None:
        second = int(now)
        place = second % (WINDOW_S + 1)
        if self._seconds[place] != second:
            self._seconds[place], self._counts[place] = second, 0
        self._counts[place] += num_tokens

    def rate(self, now: float) -> float:
        """Tokens a second over the last ``WINDOW_S`` whole seconds; the one under way does not
        count yet."""
        second = int(now)
        counted = zip(self._seconds, self._counts, strict=True)
        return sum(n for at, n in counted if second - WINDOW_S <= at < second) / WINDOW_S
