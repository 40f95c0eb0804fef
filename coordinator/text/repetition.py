"""Finds an output that repeats itself: a pattern of tokens, several times in a row at its end."""

from collections import deque
from typing import Annotated

from msgspec import Meta, Struct

MAX_PATTERN = 256
"""The longest pattern, in tokens. Each of these tokens is compared with the newest token, on the
loop that streams."""


class RepetitionDetection(Struct, kw_only=True, omit_defaults=True):
    """vLLM's parameters of repetition detection: a pattern of ``min_pattern_size`` (0: 1) to
    ``max_pattern_size`` (0: off) tokens, ``min_count`` times. Raises ValueError for a
    contradiction."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN)] = 0
    min_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN)] = 0
    min_count: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0

    def __post_init__(self) -> None:
        if self.min_pattern_size > self.max_pattern_size:
            raise ValueError("min_pattern_size is above max_pattern_size")
        if self.max_pattern_size and self.min_count < 2:
            raise ValueError("min_count must be 2 at least")


class RepetitionDetector:
    """Watches the tokens of one output, in O(``max_pattern_size``) per token."""

    def __init__(self, wanted: RepetitionDetection) -> None:
        self._sizes = range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1)
        self._min_count = wanted.min_count
        self._last: deque[int] = deque(maxlen=wanted.max_pattern_size)  # the newest first
        self._num_same = [0] * (wanted.max_pattern_size + 1)

    def push(self, token_id: int) -> bool:
        """Feed a token; returns True if the output repeats itself now."""
        found = False
        for size in self._sizes:
            # How many tokens in a row equal those that came ``size`` tokens before.
            same = len(self._last) >= size and self._last[size - 1] == token_id
            self._num_same[size] = self._num_same[size] + 1 if same else 0
            found = found or self._num_same[size] >= size * (self._min_count - 1)
        self._last.appendleft(token_id)
        return found


class NoDetector:
    """The detector of a request that asks for none."""

    def push(self, token_id: int) -> bool:
        return False


def detector(wanted: RepetitionDetection | None) -> RepetitionDetector | NoDetector:
    """A detector for one output."""
    return RepetitionDetector(wanted) if wanted and wanted.max_pattern_size else NoDetector()
