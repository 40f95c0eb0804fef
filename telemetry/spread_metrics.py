"""The Prometheus metrics of decode steps that workers compute together.

The counters grow by the growth between heartbeats, as the counters of drafts do.
"""

from telemetry.metric_factory import MetricFactory


class SpreadMetrics:
    """Metrics of spread steps by worker; ``member``: the worker that it waited for."""

    def __init__(self, make: MetricFactory) -> None:
        worker = "instance", "role"
        self.members = make.gauge(
            "baton_spread_members",
            "Workers in this worker's spread group; 0: it has none.",
            *worker,
        )
        self.table = make.gauge(
            "baton_spread_table_info",
            "1 for the step times by which the worker decides.",
            *worker,
            "table",
        )
        self.left_out = make.gauge(
            "baton_spread_left_out",
            "1 while the worker is left out because it is too slow.",
            *worker,
        )
        self.steps = make.counter(
            "baton_spread_steps",
            "Decode steps that the worker computed together with others.",
            *worker,
        )
        self.step_s = make.counter(
            "baton_spread_step_seconds", "Time that these steps took.", *worker
        )
        self.local = make.counter(
            "baton_spread_local_steps", "Decode steps that the worker computed alone.", *worker
        )
        self.local_s = make.counter(
            "baton_spread_local_step_seconds", "Time that these steps took.", *worker
        )
        self.aborted = make.counter(
            "baton_spread_aborts",
            "Times that launched steps were taken back, and done alone.",
            *worker,
        )
        self.wait_s = make.counter(
            "baton_spread_wait_seconds",
            "How long the worker's host waited for the other hosts.",
            *worker,
        )
        self.peer_wait_s = make.counter(
            "baton_spread_peer_wait_seconds",
            "How long its host waited for this member's host.",
            *worker,
            "member",
        )
        self.within_s = make.counter(
            "baton_spread_device_wait_seconds",
            "How long its device waited for this member's rows and results within spread steps.",
            *worker,
            "member",
        )
        self.saved_s = make.counter(
            "baton_spread_saved_seconds",
            "How much longer the spread steps would have taken with one member less, by a table.",
            *worker,
        )
        self.late = make.counter(
            "baton_spread_late", "Waits of other members for this one that ended in vain.", "member"
        )

    def report(self, instance: str, role: str, num_members: int, table: str) -> None:
        """Set what a worker's last heartbeat says; ``table``: as in SpreadCounts."""
        self.members.labels(instance, role).set(num_members)
        self.table.remove_by_labels({"instance": instance, "role": role})
        if table:
            self.table.labels(instance, role, table).set(1)

    def report_left_out(self, instance: str, role: str, left_out: bool) -> None:
        self.left_out.labels(instance, role).set(left_out)

    def grow(
        self, instance: str, role: str, *,
        steps: int, local: int, step_s: float, local_s: float, aborted: int, wait_s: float,
        saved_s: float,
    ) -> None:  # fmt: skip
        """Add the counts since the worker's last heartbeat."""
        self.steps.labels(instance, role).inc(steps)
        self.local.labels(instance, role).inc(local)
        self.step_s.labels(instance, role).inc(step_s)
        self.local_s.labels(instance, role).inc(local_s)
        self.aborted.labels(instance, role).inc(aborted)
        self.wait_s.labels(instance, role).inc(wait_s)
        self.saved_s.labels(instance, role).inc(saved_s)

    def waited_for(
        self, instance: str, role: str, member: str, *, host_s: float, device_s: float
    ) -> None:
        self.peer_wait_s.labels(instance, role, member).inc(host_s)
        self.within_s.labels(instance, role, member).inc(device_s)

    def waited_in_vain(self, member: str, times: int) -> None:
        self.late.labels(member).inc(times)

    def forget(self, instance: str, role: str) -> None:
        """Remove the series of a worker that is gone."""
        worker = {"instance": instance, "role": role}
        for metric in (
            self.members, self.table, self.left_out, self.steps, self.step_s, self.local,
            self.local_s, self.aborted, self.wait_s, self.peer_wait_s, self.within_s, self.saved_s,
        ):  # fmt: skip
            metric.remove_by_labels(worker)
        for waits in (self.late, self.peer_wait_s, self.within_s):
            waits.remove_by_labels({"member": instance})
