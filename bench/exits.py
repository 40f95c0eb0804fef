"""How a check ends, as the shell sees it."""

from typing import Final

PASSED: Final = 0
FAILED: Final = 1
COULD_NOT_MEASURE: Final = 2


class CannotMeasure(Exception):
    """What was to be measured could not be: the server is down, stalls or answers garbage, or a
    setting is unusable. The message names it; the exit status is COULD_NOT_MEASURE."""
