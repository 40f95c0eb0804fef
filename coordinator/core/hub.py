"""The serving core: one channel to all workers, one lifecycle, one stream a request.

    submit    the HTTP edge's way in
    receive   a worker's message → the lifecycle
    tick      every heartbeat: say Alive, find silent workers and overdue requests
    apply     what the lifecycle wants done (effect_runner.py)

Everything runs on one event loop. No token waits for Redis, the end of a response for a moment.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

from coordinator.core.closed import ClosedConnections
from coordinator.core.connection_monitor import ConnectionMonitor
from coordinator.core.contract import Overloaded, SequenceRequest, ServiceStatus
from coordinator.core.effect_runner import EffectRunner
from coordinator.core.health_monitor import HealthMonitor
from coordinator.core.hub_settings import HubSettings
from coordinator.core.lifecycle import Lifecycle
from coordinator.core.loop_lag import watch_lag
from coordinator.core.membership import Membership
from coordinator.core.observer import Observer
from coordinator.core.offer_check import offer_problem
from coordinator.core.open_tokens import OpenTokens
from coordinator.core.placement import PlacementLimits
from coordinator.core.registry import Registry
from coordinator.core.streams import Stream
from coordinator.garbage import Sweeper
from coordinator.record.leases import Leases
from transport.wire.channel import CoordinatorChannel
from transport.wire.errors import MalformedMessage, WireError
from transport.wire.messages import (
    Claim,
    Failed,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    PeerTested,
    Prefilled,
    TokenOut,
    Tokens,
    TransferDone,
    Welcome,
)

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0
DRAINED_AT_ONCE = 256
TURN_S = 0.005
"""How long messages are taken before streams, new requests and timers get the event loop."""


class Hub:
    """The Core that the HTTP edge talks to."""

    def __init__(
        self,
        channel: CoordinatorChannel,
        observer: Observer,
        instance: str,
        settings: HubSettings,
        limits: PlacementLimits,
        leases: Leases,
    ) -> None:
        self._channel = channel
        self._leases = leases
        self._observer = observer
        self._clock = observer.clock
        self._welcome = Welcome(instance, settings.heartbeat_s, settings.dead_after_s)
        self._settings = settings
        self._registry = Registry()
        self._lifecycle = Lifecycle(self._registry, limits, self._clock, settings=settings)
        self._membership = Membership(self._registry, self._lifecycle, observer)
        self._health = HealthMonitor(
            self._registry, self._lifecycle, self._membership, channel.send, settings
        )
        self._reach = ConnectionMonitor(channel.send, instance)
        self._closed = ClosedConnections(
            self._reach.reaches, self._processes, self._bury, clock=time.monotonic
        )
        self._effects = EffectRunner(self._lifecycle, observer, channel.send)
        self._sweeper = Sweeper()
        self._open_tokens = OpenTokens(settings.max_open_tokens)
        self._num_accepted = 0
        self._draining = False
        self._stopping = asyncio.Event()
        self._complete = asyncio.Event()

    # ---- for the HTTP edge

    @property
    def max_seq_len(self) -> int | None:
        """The shortest limit among the live pools: any of them may get the request."""
        return min((w.hello.max_seq_len for w in self._registry.all()), default=None)

    @property
    def max_open_tokens(self) -> int:
        return self._open_tokens.max_tokens

    def submit(self, generation: SequenceRequest) -> Stream:
        problems = self._problems()
        if problems:
            raise Overloaded("; ".join(problems), retry_after_s=RETRY_AFTER_S)
        request_id = generation.request_id
        num_prompt = len(generation.prompt_ids)
        stream = Stream(
            self._open_tokens.hold(num_prompt, until_end=not generation.streamed),
            stop_early=lambda: self._end_by_edge(request_id, stop_early=True),
            cancel=lambda: self._end_by_edge(request_id, stop_early=False),
        )
        self._effects.open(request_id, stream)
        self._num_accepted += 1
        self._lifecycle.submit(generation, self._clock())
        self._effects.apply()
        return stream

    async def recorded(self, request_ids: Sequence[str]) -> None:
        await self._observer.recorded(request_ids)

    def cut(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._observer.cut(request_id)

    def status(self) -> ServiceStatus:
        num_open = len(self._lifecycle.requests)
        now = time.monotonic()
        return ServiceStatus(
            problems=self._problems(),
            draining=self._draining,
            queued=self._lifecycle.num_queued,
            running=num_open - self._lifecycle.num_queued,
            redis_connected=self._observer.redis_connected,
            workers=tuple(worker.status(now) for worker in self._registry.all()),
        )

    def _problems(self) -> tuple[str, ...]:
        """Why no work can be taken."""
        num_open = len(self._lifecycle.requests)
        problems = ["the coordinator is shutting down"] if self._draining else []
        problems += [f"no live {role} worker" for role in self._registry.missing_roles()]
        if num_open >= self._settings.max_open:
            problems.append(f"{num_open} requests are open, which is the most allowed")
        if (num_held := self._open_tokens.num_held) >= self.max_open_tokens:
            problems.append(f"open requests hold {num_held} tokens, which is the most allowed")
        return tuple(problems)

    # ---- its own life

    async def run(self) -> None:
        """Receive and tick until ``stop``."""
        self._channel.on_ended(self._closed.one_ended)
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(self._receive(), name="receive")
            ticking = tasks.create_task(self._tick(), name="tick")
            probing = tasks.create_task(self._closed.watch(), name="probe")
            watching = tasks.create_task(watch_lag(self._observer.loop_lag), name="lag")
            await self._stopping.wait()
            for task in (receiving, ticking, probing, watching):
                task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Take no more work; wait for what is open, and fail what is left at the deadline."""
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._effects.idle.wait(), timeout_s)
        left = list(self._lifecycle.requests.values())
        while left:
            # The youngest first: what waits goes before what it waits for.
            some, left = left[-DRAINED_AT_ONCE:], left[:-DRAINED_AT_ONCE]
            self._lifecycle.fail_all(some, "shutting_down", "the coordinator is shutting down")
            self._effects.apply()
            await asyncio.sleep(0)  # their clients are told meanwhile

    def stop(self) -> None:
        self._stopping.set()

    async def complete(self) -> None:
        """Return once there have been workers of every role that is needed."""
        await self._complete.wait()

    async def _receive(self) -> None:
        began = time.monotonic()
        while True:
            # NOTE: while messages wait, this await returns without letting anything else run.
            instance, message = await self._channel.receive()
            try:
                self._handle(instance, message)
            except Exception:
                # A bug in handling one message must not end every other stream.
                kind = type(message).__name__
                fields = self._request_of(message)
                log.exception("handling %s from %s", kind, instance, extra=fields)
            self._effects.apply()
            if time.monotonic() - began >= TURN_S:
                await asyncio.sleep(0)
                began = time.monotonic()

    def _request_of(self, message: FromWorker | WireError) -> dict[str, object]:
        """Log fields of the open request that a message is about, if it is about one."""
        match message:
            case Prefilled(token=TokenOut(request_id=request_id)):
                pass
            case TransferDone(request_id=request_id) | Failed(request_id=request_id):
                pass
            case _:
                return {}
        request = self._lifecycle.requests.get(request_id)
        return {} if request is None else request.log_fields

    def _handle(self, instance: str, message: FromWorker | WireError) -> None:
        if isinstance(message, WireError):
            self._channel.send(instance, self._membership.distrust(instance, message))
            return
        if isinstance(message, Claim):
            self._leases.claim(message)
            return
        if isinstance(message, Hello):
            self._leases.keep(message)
            known = self._registry.get(instance)
            self._channel.send(instance, self._membership.admit(message, self._welcome))
            if self._registry.get(instance) is not known:
                self._lifecycle.introduce(instance)
                if not self._registry.missing_roles():
                    self._complete.set()
            return
        if isinstance(message, Goodbye) and message.unfit:
            self._leases.unfit(instance, message.unfit)
        worker = self._registry.get(instance)
        if worker is None:
            self._channel.send(instance, self._membership.unknown(instance))
            return
        worker.heard_at = time.monotonic()
        worker.settled = True
        match message:
            case Heartbeat(gauges=gauges, held=held, gpu=gpu, malformed_dropped=malformed):
                if (
                    gauges.accounting_error
                    and gauges.accounting_error != worker.gauges.accounting_error
                ):
                    log.error(
                        "the books of %s do not balance: %s", instance, gauges.accounting_error
                    )
                worker.gauges, worker.gpu, worker.malformed_dropped = gauges, gpu, malformed
                self._observer.heartbeat(worker)
                self._lifecycle.reconcile(worker, set(held), self._settings.heartbeat_s)
            case Prefilled(token=TokenOut(request_id=request_id)):
                request = self._lifecycle.requests.get(request_id)
                if request and (problem := offer_problem(message, worker, request)):
                    self._handle(instance, MalformedMessage(f"from {instance}: {problem}"))
                    return
                if request is not None:
                    worker.prompt_tokens.add(request.num_tokens, worker.heard_at)
                worker.output_tokens.add(1, worker.heard_at)
                self._lifecycle.prefilled(instance, message)
            case TransferDone():
                self._lifecycle.transfer_done(instance, message)
            case Tokens(tokens=tokens):
                worker.output_tokens.add(len(tokens), worker.heard_at)
                self._lifecycle.tokens(instance, message)
            case Failed():
                self._lifecycle.failed(instance, message)
            case PeerTested(instance=prefill):
                if self._registry.get(prefill) is not None:
                    self._observer.peer_tested(instance, message)
                self._lifecycle.peer_tested(instance, message)
            case Goodbye(draining=True):
                log.info("%s is draining", instance)
                worker.draining = True
            case Goodbye():
                self._membership.left(worker)
            case _:
                assert_never(message)

    async def _tick(self) -> None:
        while True:
            due_at = time.monotonic() + self._settings.heartbeat_s
            await asyncio.sleep(self._settings.heartbeat_s)
            try:
                self._beat(time.monotonic() - due_at)
            except Exception:
                # As with messages: a bug in one heartbeat must not end every stream.
                log.exception("a heartbeat")
            self._effects.apply()

    def _beat(self, lag_s: float) -> None:
        # First of all: workers that hear nothing of us give up their work.
        gone = self._reach.beat(self._processes())
        self._leases.end(gone)
        self._health.keep(lag_s, gone)
        self._observer.tick(
            self.status(), self._lifecycle.stale_dropped, self._open_tokens.num_held
        )
        self._sweeper.tick(self._effects.num_streams, self._num_accepted)
        self._channel.tell_of_strangers()

    def _processes(self) -> set[str]:
        """The instances whose processes are of interest: workers, and holders of a GPU."""
        return {worker.instance for worker in self._registry.all()} | self._leases.holders

    def _bury(self, gone: set[str]) -> None:
        try:
            self._leases.end(gone)
            self._health.fence_gone(gone)
        except Exception:
            log.exception("the end of %s", sorted(gone))
        self._effects.apply()

    def _end_by_edge(self, request_id: str, *, stop_early: bool) -> None:
        request = self._lifecycle.requests.get(request_id)
        if request is None:
            return
        if stop_early:
            self._lifecycle.stop_early(request)
        else:
            self._lifecycle.cancel(request)
        self._effects.apply()
