"""A service's post: who holds it, since when, and what is due there."""

from deploy.child import Child
from deploy.notify_socket import Notice
from deploy.restarts import Restarts
from deploy.services import Service

SILENCE_S = 600.0
"""A starting service that says nothing for so long is taken for hung."""


class Post:
    """A service, and the process that holds the post now, if one does. Keeps no clock."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.restarts = Restarts()
        self.child: Child | None = None
        self.status = ""
        self.ready_at: float | None = None
        self._overdue_at: float | None = None
        self._start_at: float | None = None

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def deadline(self) -> float | None:
        """When something is due here: the next start, or a sign of progress."""
        if self.child is not None and self.ready_at is None:
            return self._overdue_at
        return self._start_at

    def taken(self, child: Child, now: float) -> None:
        self.child, self.status = child, "starting"
        self.ready_at, self._overdue_at, self._start_at = None, now + SILENCE_S, None

    def heard(self, notice: Notice, now: float) -> None:
        self._overdue_at = now + SILENCE_S
        self.status = notice.fields.get("STATUS", self.status)
        if notice.ready and self.ready_at is None:
            self.ready_at = now

    def overdue(self) -> None:
        """End a process that has been silent for too long; its death follows."""
        assert self.child is not None
        self.child.error = f"not ready and silent for {SILENCE_S:g} s, last at: {self.status}"
        self.child.kill()
        self._overdue_at = None

    def vacated(
        self,
        now: float,
        *,
        others_serve: bool = False,
        try_again: bool = False,
        planned: bool = False,
    ) -> float | None:
        """The process is gone, by order if ``planned``; seconds until the next start, None if there
        is none."""
        ready_for_s = None if self.ready_at is None else now - self.ready_at
        self.child, self.ready_at = None, None
        delay_s = self.restarts.died(
            ready_for_s=ready_for_s,
            others_serve=others_serve,
            try_again=try_again,
            planned=planned,
        )
        self._start_at = None if delay_s is None else now + delay_s
        return delay_s
