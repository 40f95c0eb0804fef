"""The Prometheus metrics of workers: their pools and queues as last reported, faults and ends."""

from typing import NamedTuple

from telemetry.metric_factory import MetricFactory


class WorkerLevels(NamedTuple):
    """What a live worker holds now, by its last heartbeat; counts are since its start."""

    num_pages: int
    free_pages: int
    num_state_slots: int
    free_state_slots: int
    running: int
    waiting: int
    draining: bool = False
    stale_dropped: int = 0
    breaker_open: bool = False
    malformed_dropped: int = 0
    drafts: int = 0
    steps_share: int = 0


_LEVELS = {
    "num_pages": ("baton_worker_pages", "Pages of a pool."),
    "free_pages": ("baton_worker_free_pages", "Free pages."),
    "num_state_slots": ("baton_worker_state_slots", "State slots."),
    "free_state_slots": ("baton_worker_free_state_slots", "Free state slots."),
    "running": ("baton_worker_running", "Sequences running."),
    "waiting": ("baton_worker_waiting", "Sequences waiting."),
    "draining": ("baton_worker_draining", "1 while the worker takes no new work."),
    "stale_dropped": (
        "baton_worker_stale_dropped",
        "Stale orders and offers that the worker dropped since it started.",
    ),
    "breaker_open": (
        "baton_worker_breaker_open",
        "1 while a worker gets no requests but probes, because of its faults.",
    ),
    "malformed_dropped": (
        "baton_worker_malformed_dropped",
        "Malformed messages of the coordinator since the worker started.",
    ),
    "drafts": ("baton_worker_drafts", "Drafts that a step makes for each sequence."),
    "steps_share": (
        "baton_worker_steps_share",
        "Multiprocessors that decode steps have beside prompts; 0 while no such prompts are "
        "computed.",
    ),
}
"""The gauge of each field of WorkerLevels."""


class WorkerMetrics:
    """Metrics of the workers: gauges by instance and role, counters by role."""

    def __init__(self, make: MetricFactory) -> None:
        self.live = make.gauge("baton_workers", "Live workers.", "role")
        self.lost = make.counter("baton_workers_lost", "Workers considered dead.", "role", "reason")
        self.faults = make.counter(
            "baton_worker_faults", "Faults of requests that count against a worker.", "role", "code"
        )
        self.selftest_bytes_per_s = make.gauge(
            "baton_handoff_selftest_bytes_per_second",
            "Speed of a pair's self-test; 0: the test failed and the pair is not used.",
            "prefill",
            "decode",
        )
        self._levels = {
            field: make.gauge(name, about, "instance", "role")
            for field, (name, about) in _LEVELS.items()
        }
        self.pages, self.free_pages = self._levels["num_pages"], self._levels["free_pages"]

    def report(self, instance: str, role: str, levels: WorkerLevels) -> None:
        """Set a live worker's gauges."""
        for field, value in levels._asdict().items():
            self._levels[field].labels(instance, role).set(value)

    def report_breaker(self, instance: str, role: str, is_open: bool) -> None:
        self._levels["breaker_open"].labels(instance, role).set(is_open)

    def forget(self, instance: str, role: str) -> None:
        """Remove the series of a worker that no longer has this role; no-op for one without
        any."""
        for gauge in self._levels.values():
            gauge.remove_by_labels({"instance": instance, "role": role})

    def forget_tests(self, instance: str) -> None:
        """Remove the self-tests of a worker that is gone. Whatever its role, it may be either side
        of a pair; and a pair is tested once, so that a change of roles removes none."""
        for side in ("prefill", "decode"):
            self.selftest_bytes_per_s.remove_by_labels({side: instance})
