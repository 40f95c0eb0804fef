"""Why a run ended without a measurement."""


class CannotMeasure(Exception):
    """The server stalls, only fails or answers garbage, or something else that the measurement
    needs is not there. The message names it; the command's exit status is 2."""
