"""Tells the process's supervisor how the worker stands (``sd_notify``)."""

from telemetry.notify import Progress, notify


class Supervisor:
    """The supervisor that started this process; without one, nothing is sent."""

    def __init__(self) -> None:
        self.waiting = Progress("waiting for a worker to pull from")
        """Reports that the worker is not ready yet. Repeated as a sign of life."""

    def ready(self) -> None:
        """Report that the worker serves."""
        notify(READY="1", STATUS="serving")

    def stopping(self) -> None:
        """Report that the worker drains, and will end."""
        notify(STOPPING="1", STATUS="draining")
