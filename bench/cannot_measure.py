"""Why a check ended without a measurement."""

from bench.server_info import ServerUnfit


class CannotMeasure(ServerUnfit):
    """The server stalls, only fails or answers garbage, or what the check needs besides it is not
    there. The message names it; the command's exit status is 2."""
