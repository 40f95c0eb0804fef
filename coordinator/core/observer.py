"""What the core reports: metrics, logs, and the records of requests and workers in Redis.

Nothing here can fail or slow a request.
"""

import logging
from collections.abc import Container, Sequence
from typing import Protocol, assert_never, get_args

from msgspec import structs

from coordinator.core.contract import BreakerState, LoadSeries, ServiceStatus
from coordinator.core.effects import (
    NOT_FAULTS,
    BreakerMoved,
    Charged,
    Emit,
    Ended,
    HandedOff,
    Recorded,
    Reported,
    Retried,
    WorkerJoined,
    WorkerLeft,
)
from coordinator.core.load_history import LoadHistory
from coordinator.core.request import Request, State
from coordinator.core.request_report import log_end, to_record
from coordinator.core.workers.worker import Departure, Worker
from coordinator.record.record import RequestRecord, stage_seconds
from coordinator.record.redis_link import Damage
from telemetry.clock import SteadyClock
from telemetry.metrics import Metrics
from transport.wire.errors import WireError
from transport.wire.messages import PeerTested
from transport.wire.reports import GpuHealth

log = logging.getLogger(__name__)


class Records(Protocol):
    """The part of the store that the observer needs. Every call returns at once; ``recorded`` takes
    a moment at most."""

    @property
    def connected(self) -> bool: ...

    @property
    def num_unwritten(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    @property
    def damage(self) -> Damage: ...

    def put(self, record: RequestRecord) -> None: ...

    async def recorded(self, request_ids: Sequence[str]) -> None: ...

    def cut(self, request_id: str) -> None: ...

    def register_worker(self, instance: str, fields: dict[str, str]) -> None: ...

    def worker_gone(self, instance: str) -> None: ...


class Observer:
    """Reports what happens in one hub. ``instance`` is the coordinator's and is written into every
    record; ``clock`` gives every time stamp there."""

    def __init__(self, metrics: Metrics, records: Records, instance: str) -> None:
        self._metrics = metrics
        self._records = records
        self._instance = instance
        self.clock = SteadyClock()
        self._load = LoadHistory()
        self._token_at: dict[str, float] = {}
        self._dropped = 0
        self._stale = 0
        self._replaced = 0
        self._unreadable = 0

    @property
    def redis_connected(self) -> bool:
        return self._records.connected

    def report(self, effect: Reported) -> None:
        """Report an effect that was carried out."""
        match effect:
            case Emit(request=request):
                self.token(request)
            case Recorded(request=request):
                self._records.put(to_record(request, self._instance))
            case HandedOff(request=request):
                self.handed_off(request)
            case Retried(request=request, code=code, message=why):
                self.retried(request, code, why)
            case Ended(request=request):
                self.ended(request)
            case Charged(worker=worker, code=code):
                self._metrics.worker_faults.labels(worker.hello.role, code).inc()
            case BreakerMoved(worker=worker, state=state, why=why):
                self.breaker_moved(worker, state, why)
            case WorkerJoined(worker=worker):
                self.worker_joined(worker)
            case WorkerLeft(worker=worker, departure=departure):
                self.worker_left(worker, departure)
            case _:
                assert_never(effect)

    async def recorded(self, request_ids: Sequence[str]) -> None:
        """Wait a moment until the ends of these requests are recorded."""
        await self._records.recorded(request_ids)

    def cut(self, request_id: str) -> None:
        """Note in an ended request's record that its client did not get the whole answer."""
        self._records.cut(request_id)

    def token(self, request: Request) -> None:
        """Measure TTFT or ITL: a token goes to the client."""
        metrics, now = self._metrics, self.clock()
        metrics.generation_tokens.inc()
        before = self._token_at.get(request.request_id)
        if before is None:
            ttft_s = now - request.stages["received_at"]
            metrics.ttft_s.observe(ttft_s)
            self._load.first_token(now, ttft_s, len(request.spec.prompt_ids))
        else:
            self._load.next_token(now)
            metrics.itl_s.observe(now - before)
        self._token_at[request.request_id] = now

    def stepped(self, num_tokens: int) -> None:
        """Observe the number of tokens from one decode step of a worker."""
        self._metrics.per_request.step_tokens.observe(num_tokens)

    def retried(self, request: Request, code: str, why: str) -> None:
        """Count and log a failed attempt that is followed by another one."""
        self._metrics.retries.labels(code).inc()
        if code == "preempted":
            self._metrics.per_request.preemptions.inc()
        level = logging.INFO if code in NOT_FAULTS else logging.WARNING
        fields = {**request.log_fields, "code": code, "why": why}
        log.log(level, "retried", extra=fields)

    def ended(self, request: Request) -> None:
        metrics, stages = self._metrics, request.stages
        self._token_at.pop(request.request_id, None)
        reason = request.finish_reason or request.code or "disconnected"
        metrics.requests.labels(request.state.value, reason).inc()
        log_end(request, reason)
        metrics.prompt_tokens.inc(len(request.spec.prompt_ids))
        sizes = metrics.per_request
        sizes.prompt_tokens.observe(len(request.spec.prompt_ids))
        sizes.output_tokens.observe(len(request.output_ids))
        sizes.max_tokens.observe(request.spec.stop.max_tokens)
        metrics.e2e_s.observe(stages["ended_at"] - stages["received_at"])
        if "prefill_s" in stages:
            queued_s = stages["placed_at"] - stages["queued_at"]
            metrics.queue_s.observe(queued_s + stages["prefill_wait_s"])
            metrics.prefill_s.observe(stages["prefill_s"])
            begun_at = stages["placed_at"] + stages["prefill_wait_s"]
            sizes.inference_s.observe(max(0.0, stages["ended_at"] - begun_at))
        if "first_token_at" in stages:
            decode_s = stages["ended_at"] - stages["first_token_at"]
            metrics.decode_s.observe(decode_s)
            if request.state is State.FINISHED and len(request.output_ids) > 1:
                tpot_s = decode_s / (len(request.output_ids) - 1)
                metrics.tpot_s.observe(tpot_s)
                self._load.finished(self.clock(), tpot_s)

    def handed_off(self, request: Request) -> None:
        """Measure the stages and bytes of a handoff whose first decoded token has arrived."""
        metrics, copy_s = self._metrics, request.stages["copy_s"]
        parts = stage_seconds(request.stages)
        for stage, seconds in parts.items():
            metrics.handoff_s.labels(stage).observe(seconds)
        if "total" in parts:
            self._load.handed_off(self.clock(), parts["total"], request.handoff_bytes)
        metrics.handoff_bytes.inc(request.handoff_bytes)
        if copy_s > 0:
            metrics.handoff_gb_per_s.observe(request.handoff_bytes / copy_s / 1e9)

    def worker_joined(self, worker: Worker) -> None:
        hello = worker.hello
        self._metrics.workers.labels(hello.role).inc()
        self._metrics.page_tokens.set(worker.layout.page_size)
        for departure in get_args(Departure):
            # Prometheus sees no increase in a series that begins with its first loss.
            self._metrics.workers_lost.labels(hello.role, departure)
        fields = {
            "role": hello.role,
            "device": hello.device,
            "gpu": hello.gpu,
            "pid": str(hello.pid),
            "model": hello.model,
            "num_pages": str(hello.memory.pools.num_pages),
            "num_state_slots": str(hello.memory.pools.num_state_slots),
            "joined_at": str(self.clock()),
        }
        self._records.register_worker(worker.instance, fields)
        self.heartbeat(worker)

    def worker_left(self, worker: Worker, reason: Departure) -> None:
        role = worker.hello.role
        self._metrics.workers.labels(role).dec()
        self._metrics.forget_worker(worker.instance, role)
        self._metrics.workers_lost.labels(role, reason).inc(reason != "goodbye")
        self._records.worker_gone(worker.instance)

    def counted(self, worker: Worker) -> None:
        """Add what a heartbeat counts beyond the one before."""
        growth = worker.drafts.growth
        self._metrics.drafts.grow(growth.num_steps, growth.verified, growth.accepted)
        prefixes, spread = structs.asdict(worker.prefixes.growth), worker.spread.growth
        self._metrics.prefixes.grow(worker.instance, worker.hello.role, prefixes)
        self._metrics.spread.grow(
            worker.instance, worker.hello.role, steps=spread.num_steps, local=spread.num_local,
            step_s=spread.spread_ms / 1e3, local_s=spread.local_ms / 1e3,
            aborted=spread.num_aborted, wait_s=spread.wait_ms / 1e3, saved_s=spread.saved_us / 1e6,
        )  # fmt: skip

    def waited(self, worker: Worker, live: Container[str]) -> None:
        """Report how long the worker's host waited for live members of its spread group before
        steps, how long its device waited within them, and how often a wait was in vain."""
        growth, role = worker.spread.growth, worker.hello.role
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
        self._metrics.set_worker(
            worker.instance,
            worker.hello.role,
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
        )
        held = structs.asdict(gauges.prefix) | {"gpu_bytes": worker.kept_bytes}
        self._metrics.prefixes.report(worker.instance, worker.hello.role, held)
        self._metrics.spread.report(
            worker.instance, worker.hello.role, gauges.spread.num_members, gauges.spread.table
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
            worker.hello.role,
            worker.hello.gpu,
            {name: float(value) for name, value in known.items() if value is not None},
            {xid.number: xid.times for xid in health.xids},
        )

    def breaker_moved(self, worker: Worker, state: BreakerState, why: str) -> None:
        """Log and show that a worker's circuit breaker opened, lets a probe through, or closed."""
        level = logging.WARNING if state == "open" else logging.INFO
        log.log(level, "breaker of %s: %s: %s", worker.instance, state, why)
        gauge = self._metrics.breaker_open.labels(worker.instance, worker.hello.role)
        gauge.set(state != "closed")

    def peer_tested(self, puller: Worker, tested: PeerTested) -> None:
        """Show the speed of a tested pair. Decode workers test pairs for handoffs, others for kept
        prefixes."""
        speed = 0.0 if tested.problem else tested.num_bytes / max(tested.seconds, 1e-9)
        if puller.hello.role == "decode":
            self._metrics.selftest_bytes_per_s.labels(tested.instance, puller.instance).set(speed)
        else:
            self._metrics.prefixes.tested(tested.instance, puller.instance, speed)

    def rejected(self, error: WireError) -> None:
        self._metrics.stale_dropped.labels(type(error).__name__).inc()

    def load_series(self) -> LoadSeries:
        return self._load.series(self.clock())

    def loop_lag(self, lag_s: float) -> None:
        """Measure how late the event loop was."""
        self._metrics.event_loop_lag_s.observe(lag_s)

    def tick(self, status: ServiceStatus, stale_dropped: int, open_tokens: int) -> None:
        """Once per heartbeat: set the gauges of what is open."""
        metrics = self._metrics
        for worker in status.workers:
            if worker.spread is not None:
                out = worker.spread.left_out_s > 0
                metrics.spread.report_left_out(worker.instance, worker.role, out)
        self._load.level(self.clock(), status.queued, status.running)
        metrics.queued.set(status.queued)
        metrics.running.set(status.running)
        metrics.open_tokens.set(open_tokens)
        metrics.ready.set(status.ready)
        metrics.redis_connected.set(status.redis_connected)
        metrics.redis_records_unwritten.set(self._records.num_unwritten)
        metrics.redis_writes_dropped.inc(self._records.dropped - self._dropped)
        metrics.stale_dropped.labels("worker").inc(stale_dropped - self._stale)
        damage = self._records.damage
        metrics.redis_keys_replaced.inc(damage.num_replaced - self._replaced)
        metrics.redis_records_unreadable.inc(damage.num_unreadable - self._unreadable)
        self._replaced, self._unreadable = damage.num_replaced, damage.num_unreadable
        self._dropped, self._stale = self._records.dropped, stale_dropped
