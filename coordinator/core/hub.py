"""The serving core: one channel to all workers, one lifecycle, one stream per request.

    submit    accept a request of the HTTP edge
    receive   give a worker's message to the inbox, which calls the lifecycle
    tick      every heartbeat: send Alive, find silent workers and overdue requests

The hub builds the rooms (requests/, placement/, workers/, spread/) and joins them. effects.py
carries out what follows from each event.

Everything runs on one event loop. No token waits for Redis; the end of a response waits a moment.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from coordinator.core.contract import (
    LoadSeries,
    Overloaded,
    PoolChange,
    SequenceRequest,
    ServiceStatus,
)
from coordinator.core.effects import EffectRunner, Ended, Reported, Stream
from coordinator.core.event_loop import Sweeper, watch_lag
from coordinator.core.inbox import Inbox
from coordinator.core.observer import Observer
from coordinator.core.open_tokens import OpenTokens
from coordinator.core.pool_meter import PoolMeter
from coordinator.core.pool_policy import LOOK_S
from coordinator.core.pools import Pools
from coordinator.core.pools_follow import PoolsThatFollow
from coordinator.core.request import Request
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import HubSettings, PlacementLimits
from coordinator.core.soft_pools import SoftPools
from coordinator.core.spread.groups import SpreadGroups
from coordinator.core.workers.connections import ClosedConnections, ConnectionMonitor
from coordinator.core.workers.membership import Membership
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.channel import CoordinatorChannel
from transport.wire.messages import Role, Targets, Welcome

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0
DECODE_COMPUTES_PROMPTS = "no live prefill worker: decode workers compute prompts"
GIVEN_ACCEPTANCE = "benchmark: drafts are accepted with a given probability of {:g}"
SLOW = "{} slows the others down: they compute their steps without it"
FOLLOWED = (
    "pools: they follow the load (--pools auto); to change them by hand, start with --pools manual"
)
DRAINED_AT_ONCE = 256
TURN_S = 0.005
"""How long messages are handled before streams, new requests and timers get the event loop."""


class Hub:
    """The ``Core`` (contract.py) that the HTTP edge talks to."""

    def __init__(
        self,
        channel: CoordinatorChannel,
        observer: Observer,
        instance: str,
        settings: HubSettings,
        limits: PlacementLimits,
    ) -> None:
        self._channel = channel
        self._observer = observer
        self._clock = observer.clock
        self._settings = settings
        self._registry = registry = Registry()
        targets, self._meter = settings.targets, PoolMeter()
        self._effects = EffectRunner(self._report, channel.send, self._fail_internally)
        self._lifecycle = lifecycle = Lifecycle(
            registry, limits, self._effects.carry_out, self._clock, settings=settings,
            soft=SoftPools(targets, self._meter) if settings.pools_follow else None,
        )  # fmt: skip
        self._membership = membership = Membership(
            registry, lifecycle.worker_lost, lifecycle.worker_returned, channel.send, settings
        )
        asked = Targets(targets.ttft_s, targets.tpot_s)
        welcome = Welcome(instance, settings.heartbeat_s, settings.dead_after_s, asked)
        # Unix seconds exceed earlier coordinators' generations: none formed a group per second.
        self._groups = groups = SpreadGroups(
            registry, channel.send, time.monotonic, int(self._clock())
        )
        self._pools = Pools(registry, self._role_changed)
        self._follow = (
            PoolsThatFollow(self._pools, targets, self._meter) if settings.pools_follow else None
        )
        self._inbox = Inbox(channel, registry, lifecycle, membership, observer, groups, welcome)
        self._connections = ConnectionMonitor(channel.send, instance)
        self._closed = ClosedConnections(
            self._connections.reaches, self._processes, self._remove_dead, clock=time.monotonic
        )
        self._sweeper = Sweeper()
        self._open_tokens = OpenTokens(settings.max_open_tokens)
        self._num_accepted = 0
        self._draining = False
        self._stopping = asyncio.Event()

    @property
    def max_seq_len(self) -> int | None:
        """The smallest limit of the live workers: any of them may get the request."""
        return min((w.hello.max_seq_len for w in self._registry.all()), default=None)

    @property
    def max_open_tokens(self) -> int:
        return self._open_tokens.max_tokens

    @property
    def pools_follow(self) -> bool:
        return self._follow is not None

    def submit(self, spec: SequenceRequest) -> Stream:
        if self._draining:
            message = (
                "the coordinator is draining: it finishes what is open and takes no new request"
            )
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S, code="draining")
        # Once every role has had a worker, requests wait for the next one.
        is_starting = not self._inbox.complete.is_set()
        if obstacles := self._obstacles() if is_starting else self._full():
            raise Overloaded("; ".join(obstacles), retry_after_s=RETRY_AFTER_S)
        request_id = spec.request_id
        stream = Stream(
            self._open_tokens.hold(spec.num_held, until_end=not spec.streamed),
            stop_early=lambda: self._end_by_edge(request_id, stop_early=True),
            cancel=lambda: self._end_by_edge(request_id, stop_early=False),
        )
        self._effects.open(request_id, stream)
        self._num_accepted += 1
        self._lifecycle.submit(spec, self._clock())
        return stream

    async def recorded(self, request_ids: Sequence[str]) -> None:
        await self._observer.recorded(request_ids)

    def cut(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._observer.cut(request_id)

    def status(self) -> ServiceStatus:
        num_open = len(self._lifecycle.requests)
        now = time.monotonic()
        obstacles = self._obstacles()
        is_lost = self._registry.decode_computes_prompts() and not self._pools.all_do_both
        degraded = [DECODE_COMPUTES_PROMPTS] if is_lost else []
        workers = tuple(w.status(now, self._groups.status(w)) for w in self._registry.all())
        degraded += [SLOW.format(w.instance) for w in workers if w.spread and w.spread.left_out_s]
        given = sorted({w.given_acceptance for w in workers if w.given_acceptance is not None})
        degraded += [GIVEN_ACCEPTANCE.format(each) for each in given]
        return ServiceStatus(
            ready=not obstacles,
            problems=(*obstacles, *degraded),
            draining=self._draining,
            queued=self._lifecycle.num_queued,
            running=num_open - self._lifecycle.num_queued,
            redis_connected=self._observer.redis_connected,
            workers=workers,
            pools_why=self._follow.why if self._follow else "",
            moves_last_minute=self._observer.num_moved_last_minute(),
        )

    async def set_pools(self, prefill: int, decode: int) -> PoolChange:
        if self._follow is not None:
            raise ValueError(FOLLOWED)
        return await self._pools.set(prefill, decode)

    def load_series(self) -> LoadSeries:
        return self._observer.load_series()

    def num_output(self, request_id: str) -> int | None:
        request = self._lifecycle.requests.get(request_id)
        return None if request is None else len(request.output_ids)

    def _obstacles(self) -> list[str]:
        """Why the service is not ready."""
        problems = ["the coordinator is shutting down"] if self._draining else []
        needed = () if self._registry.decode_computes_prompts() else self._registry.missing_roles()
        problems += [f"no live {role} worker" for role in needed]
        return problems + self._full()

    def _full(self) -> list[str]:
        """The limits that are reached."""
        problems = []
        if (num_open := len(self._lifecycle.requests)) >= self._settings.max_open:
            problems.append(f"{num_open} requests are open, which is the most allowed")
        if (num_held := self._open_tokens.num_held) >= self.max_open_tokens:
            problems.append(f"open requests hold {num_held} tokens, which is the most allowed")
        return problems

    async def run(self) -> None:
        """Receive and tick until ``stop``."""
        self._channel.on_ended(self._closed.one_ended)
        async with asyncio.TaskGroup() as tasks:
            deliver = self._channel.deliver(self._inbox.take, turn_s=TURN_S)
            receiving = tasks.create_task(deliver, name="receive")
            ticking = tasks.create_task(self._tick(), name="tick")
            probing = tasks.create_task(self._closed.watch(), name="probe")
            watching = tasks.create_task(watch_lag(self._observer.loop_lag), name="lag")
            following = tasks.create_task(self._follow_load(), name="pools")
            await self._stopping.wait()
            for task in (receiving, ticking, probing, watching, following):
                task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Accept no more requests, wait for the open ones, and fail the rest at the deadline."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._effects.idle.wait()
        remaining = list(self._lifecycle.requests.values())
        while remaining:
            # The youngest first: a waiting request ends before it could get an older one's place.
            some, remaining = remaining[-DRAINED_AT_ONCE:], remaining[:-DRAINED_AT_ONCE]
            self._lifecycle.fail_all(some, "shutting_down", "the coordinator is shutting down")
            await asyncio.sleep(0)  # lets the clients get their errors

    def stop(self) -> None:
        self._stopping.set()

    async def all_roles_joined(self) -> None:
        """Return once workers of every needed role have joined."""
        await self._inbox.complete.wait()

    async def _tick(self) -> None:
        while True:
            due_at = time.monotonic() + self._settings.heartbeat_s
            await asyncio.sleep(self._settings.heartbeat_s)
            try:
                self._beat(time.monotonic() - due_at)
            except Exception:
                # A bug in one heartbeat must not end every stream.
                log.exception("heartbeat tick failed")

    async def _follow_load(self) -> None:
        while self._follow is not None:
            await asyncio.sleep(LOOK_S)
            try:
                open_now = self._lifecycle.requests.values()
                asked = ((each.spec.ttft_s, each.spec.tpot_s) for each in open_now)
                self._follow.look(self._lifecycle.num_tokens_queued, time.monotonic(), asked)
            except Exception:
                log.exception("the pools could not follow the load")

    def _beat(self, lag_s: float) -> None:
        # Send Alive first: workers that hear nothing from the coordinator drop their requests.
        gone = self._connections.beat(self._processes())
        self._membership.check(lag_s, gone)
        self._pools.restore()
        self._lifecycle.tick()
        self._pools.look()
        self._groups.update()
        self._observer.tick(
            self.status(), self._lifecycle.stale_dropped, self._open_tokens.num_held
        )
        self._sweeper.tick(self._effects.num_streams, self._num_accepted)
        self._channel.keep(self._processes())
        self._channel.log_unverified()

    def _report(self, effect: Reported) -> None:
        self._observer.report(effect)
        if isinstance(effect, Ended) and (answer_s := effect.request.answer_s) is not None:
            ended = effect.request
            self._meter.note_answer(answer_s, len(ended.output_ids))

    def _processes(self) -> set[str]:
        return {worker.instance for worker in self._registry.all()}

    def _remove_dead(self, gone: set[str]) -> None:
        try:
            self._membership.fence_gone(gone)
            self._groups.update()
        except Exception:
            log.exception("removing the dead workers %s failed", sorted(gone))

    def _role_changed(self, worker: Worker, before: Role) -> None:
        self._observer.workers.role_changed(worker, before)
        self._lifecycle.roles_changed()
        self._groups.role_changed(worker)

    def _end_by_edge(self, request_id: str, *, stop_early: bool) -> None:
        request = self._lifecycle.requests.get(request_id)
        if request is None:
            return
        if stop_early:
            self._lifecycle.stop_early(request)
        else:
            self._lifecycle.cancel(request)

    def _fail_internally(self, request: Request) -> None:
        self._lifecycle.fail_all([request], "internal_error", "internal error")
