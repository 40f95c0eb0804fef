"""The exception for runs that end without a measurement."""


class CannotMeasure(Exception):
    """The server stalls, only fails or answers garbage, or something that the measurement needs is
    missing. The message names it; the command's exit status is 2."""
