"""What the core reports: metrics, logs, and the records of requests and workers in Redis.

Nothing here can fail or slow a request. worker_report.py reports workers.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol, assert_never

from coordinator.core.contract import LoadSeries, ServiceStatus
from coordinator.core.effects import (
    NOT_FAULTS,
    BreakerMoved,
    Charged,
    Crossed,
    Emit,
    Ended,
    HandedOff,
    Moved,
    Recorded,
    Reported,
    Retried,
    WorkerJoined,
    WorkerLeft,
)
from coordinator.core.load_history import LoadHistory
from coordinator.core.request import Request, State
from coordinator.core.request_report import log_end, to_record
from coordinator.core.worker_report import WorkerEntries, WorkerReport
from coordinator.record.record import RequestRecord, stage_seconds
from coordinator.record.redis_link import Damage
from telemetry.clock import SteadyClock
from telemetry.metrics import Metrics
from transport.wire.errors import WireError

log = logging.getLogger(__name__)

MINUTE_S = 60.0


class Records(WorkerEntries, Protocol):
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


class Observer:
    """Reports what happens in one hub. ``instance`` is the coordinator's and is written into every
    record; ``clock`` gives every time stamp there. ``workers`` reports them."""

    def __init__(self, metrics: Metrics, records: Records, instance: str) -> None:
        self._metrics = metrics
        self._records = records
        self._instance = instance
        self.clock = SteadyClock()
        self.workers = WorkerReport(metrics, records, self.clock)
        self._load = LoadHistory()
        self._token_at: dict[str, float] = {}
        self._moved_at = deque[float]()
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
            case Moved(request=request, reason=reason, stayed=stayed, seconds=seconds):
                self.moved(request, reason, seconds, stayed=stayed)
            case Crossed(what=what):
                self._metrics.crossed_pools.labels(what).inc()
            case Retried(request=request, code=code, message=why):
                self.retried(request, code, why)
            case Ended(request=request):
                self.ended(request)
            case Charged(worker=worker, code=code):
                self.workers.charged(worker, code)
            case BreakerMoved(worker=worker, state=state, why=why):
                self.workers.breaker_moved(worker, state, why)
            case WorkerJoined(worker=worker):
                self.workers.joined(worker)
            case WorkerLeft(worker=worker, departure=departure):
                self.workers.departed(worker, departure)
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

    def moved(self, request: Request, reason: str, seconds: float, *, stayed: bool) -> None:
        """Count a move by its reason and outcome, and how long it took."""
        self._metrics.moves.labels(reason, "stayed" if stayed else "moved").inc()
        if not stayed:
            self._metrics.move_s.labels(reason).observe(seconds)
            self._moved_at.append(self.clock())
        log.debug("moved", extra={**request.log_fields, "reason": reason, "stayed": stayed})

    def num_moved_last_minute(self) -> int:
        while self._moved_at and self.clock() - self._moved_at[0] > MINUTE_S:
            self._moved_at.popleft()
        return len(self._moved_at)

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
        self._load.level(self.clock(), status.prompts_waiting, status.running)
        metrics.queued.set(status.prompts_waiting)
        metrics.running.set(status.running)
        metrics.open_tokens.set(open_tokens)
        metrics.ready.set(status.ready)
        metrics.redis.connected.set(status.redis_connected)
        metrics.redis.records_unwritten.set(self._records.num_unwritten)
        metrics.redis.writes_dropped.inc(self._records.dropped - self._dropped)
        metrics.stale_dropped.labels("worker").inc(stale_dropped - self._stale)
        damage = self._records.damage
        metrics.redis.keys_replaced.inc(damage.num_replaced - self._replaced)
        metrics.redis.records_unreadable.inc(damage.num_unreadable - self._unreadable)
        self._replaced, self._unreadable = damage.num_replaced, damage.num_unreadable
        self._dropped, self._stale = self._records.dropped, stale_dropped
