"""The Prometheus metrics of decode steps that workers compute together.

The counters grow by what each heartbeat brings, as those of drafts do.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge


class SpreadMetrics:
    """By worker; ``member`` is the one that was waited for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        worker = ["instance", "role"]
        self.members = Gauge(
            "baton_spread_members", "Workers in this worker's spread group; 0: it has none.",
            worker, registry=registry,
        )  # fmt: skip
        self.steps = Counter(
            "baton_spread_steps", "Decode steps that the worker launched together with others.",
            worker, registry=registry,
        )  # fmt: skip
        self.aborted = Counter(
            "baton_spread_steps_aborted", "Those of them that were taken back, and done alone.",
            worker, registry=registry,
        )  # fmt: skip
        self.wait_s = Counter(
            "baton_spread_wait_seconds", "How long the worker's host waited for the others'.",
            worker, registry=registry,
        )  # fmt: skip
        self.late = Counter(
            "baton_spread_late", "Waits in vain for this member, of all others.",
            ["member"], registry=registry,
        )  # fmt: skip

    def tell(self, instance: str, role: str, num_members: int) -> None:
        self.members.labels(instance, role).set(num_members)

    def grow(
        self, instance: str, role: str, *, steps: int, aborted: int, wait_s: float
    ) -> None:  # fmt: skip
        """So much more since the worker's last heartbeat."""
        self.steps.labels(instance, role).inc(steps)
        self.aborted.labels(instance, role).inc(aborted)
        self.wait_s.labels(instance, role).inc(wait_s)

    def waited_in_vain(self, member: str, times: int) -> None:
        self.late.labels(member).inc(times)

    def forget(self, instance: str, role: str) -> None:
        """The worker is gone."""
        worker = {"instance": instance, "role": role}
        for metric in (self.members, self.steps, self.aborted, self.wait_s):
            metric.remove_by_labels(worker)
        self.late.remove_by_labels({"member": instance})
