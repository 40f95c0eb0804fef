"""What the core reports of workers: metrics, logs, and their entries in Redis."""

import logging
from collections.abc import Callable, Container
from typing import Protocol, get_args

from msgspec import structs

from coordinator.core.contract import BreakerState
from coordinator.core.workers.worker import Departure, Worker
from telemetry.metrics import Metrics
from telemetry.worker_metrics import WorkerLevels
from transport.wire.messages import PeerTested, Role
from transport.wire.reports import GpuHealth

log = logging.getLogger(__name__)


class WorkerEntries(Protocol):
    """The part of the store that has an entry for each worker. Every call returns at once."""

    def register_worker(self, instance: str, fields: dict[str, str]) -> None: ...

    def worker_gone(self, instance: str) -> None: ...


class WorkerReport:
    """Reports the workers of one hub. ``clock`` gives the times of their entries, Unix seconds."""

    def __init__(
        self, metrics: Metrics, entries: WorkerEntries, clock: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._entries = entries
        self._clock = clock

    def joined(self, worker: Worker) -> None:
        hello = worker.hello
        self._metrics.workers.live.labels(hello.role).inc()
        self._metrics.page_tokens.set(worker.layout.page_size)
        for departure in get_args(Departure):
            # Prometheus sees no increase in a series that begins with its first loss.
            self._metrics.workers.lost.labels(hello.role, departure)
        self._register(worker)
        self.heartbeat(worker)

    def _register(self, worker: Worker) -> None:
        hello = worker.hello
        fields = {
            "role": worker.role,
            "device": hello.device,
            "gpu": hello.gpu,
            "pid": str(hello.pid),
            "model": hello.model,
            "num_pages": str(hello.memory.pools.num_pages),
            "num_state_slots": str(hello.memory.pools.num_state_slots),
            "joined_at": str(self._clock()),
        }
        self._entries.register_worker(worker.instance, fields)

    def role_changed(self, worker: Worker, before: Role) -> None:
        """Show a worker under its new role, and count the change."""
        self._metrics.role_changes.labels(before, worker.role).inc()
        self._metrics.workers.live.labels(before).dec()
        self._metrics.workers.live.labels(worker.role).inc()
        self._metrics.forget_worker(worker.instance, before)
        self._register(worker)
        self.heartbeat(worker)

    def departed(self, worker: Worker, reason: Departure) -> None:
        role = worker.role
        self._metrics.workers.live.labels(role).dec()
        self._metrics.forget_worker(worker.instance, role)
        self._metrics.workers.forget_tests(worker.instance)
        self._metrics.workers.lost.labels(role, reason).inc(reason != "goodbye")
        self._entries.worker_gone(worker.instance)

    def counted(self, worker: Worker) -> None:
        """Add what a heartbeat counts beyond the one before."""
        growth = worker.drafts.growth
        self._metrics.drafts.grow(growth.num_steps, growth.verified, growth.accepted)
        prefixes, spread = structs.asdict(worker.prefixes.growth), worker.spread.growth
        self._metrics.prefixes.grow(worker.instance, worker.role, prefixes)
        self._metrics.spread.grow(
            worker.instance, worker.role, steps=spread.num_steps, local=spread.num_local,
            step_s=spread.spread_ms / 1e3, local_s=spread.local_ms / 1e3,
            aborted=spread.num_aborted, wait_s=spread.wait_ms / 1e3, saved_s=spread.saved_us / 1e6,
        )  # fmt: skip

    def waited(self, worker: Worker, live: Container[str]) -> None:
        """Report how long the worker's host waited for live members of its spread group before
        steps, how long its device waited within them, and how often a wait was in vain."""
        growth, role = worker.spread.growth, worker.role
        host_ms, device_us = dict(growth.waits_ms), dict(growth.within_us)
        for member in host_ms | device_us:
            if member in live:
                self._metrics.spread.waited_for(
                    worker.instance, role, member, host_s=host_ms.get(member, 0) / 1e3,
                    device_s=device_us.get(member, 0) / 1e6,
                )  # fmt: skip
        for member, times in growth.late:
            if member in live:
                self._metrics.spread.waited_in_vain(member, times)

    def heartbeat(self, worker: Worker) -> None:
        gauges, pools = worker.gauges, worker.hello.memory.pools
        levels = WorkerLevels(
            num_pages=pools.num_pages,
            free_pages=gauges.free_pages,
            num_state_slots=pools.num_state_slots,
            free_state_slots=gauges.free_state_slots,
            running=gauges.running,
            waiting=gauges.waiting,
            draining=worker.draining,
            stale_dropped=gauges.stale_dropped,
            breaker_open=not worker.breaker.closed,
            malformed_dropped=worker.malformed_dropped,
            drafts=worker.drafts.num_drafts,
            steps_share=worker.gauges.steps_share,
        )
        self._metrics.workers.report(worker.instance, worker.role, levels)
        held = structs.asdict(gauges.prefix) | {"gpu_bytes": worker.kept_bytes}
        self._metrics.prefixes.report(worker.instance, worker.role, held)
        self._metrics.spread.report(
            worker.instance, worker.role, gauges.spread.num_members, gauges.spread.table
        )
        if worker.gpu is None:
            self._metrics.gpus.forget(worker.instance)
        else:
            self._report_gpu(worker, worker.gpu)

    def _report_gpu(self, worker: Worker, health: GpuHealth) -> None:
        known = structs.asdict(health)
        del known["xids"]
        self._metrics.gpus.report(
            worker.instance,
            worker.role,
            worker.hello.gpu,
            {name: float(value) for name, value in known.items() if value is not None},
            {xid.number: xid.times for xid in health.xids},
        )

    def charged(self, worker: Worker, code: str) -> None:
        """Count a request's fault against the worker."""
        self._metrics.workers.faults.labels(worker.role, code).inc()

    def breaker_moved(self, worker: Worker, state: BreakerState, why: str) -> None:
        """Log and show that a worker's circuit breaker opened, lets a probe through, or closed."""
        level = logging.WARNING if state == "open" else logging.INFO
        log.log(level, "breaker of %s: %s: %s", worker.instance, state, why)
        is_open = state != "closed"
        self._metrics.workers.report_breaker(worker.instance, worker.role, is_open)

    def peer_tested(self, puller: Worker, tested: PeerTested) -> None:
        """Show the speed of a tested pair. Decode workers test pairs for handoffs, others for kept
        prefixes."""
        speed = 0.0 if tested.problem else tested.num_bytes / max(tested.seconds, 1e-9)
        if puller.can_be("decode"):
            self._metrics.workers.selftest_bytes_per_s.labels(tested.instance, puller.instance).set(
                speed
            )
        else:
            self._metrics.prefixes.tested(tested.instance, puller.instance, speed)
