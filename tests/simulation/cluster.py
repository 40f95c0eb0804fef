"""A whole cluster in one thread: real lifecycle, workers, allocators and copies, with the network,
the GPU's command queue and the copy stream advanced one random event at a time.

Every text is compared with the one a lone engine would give (see fake_engine.py).
"""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

from coordinator.core.contract import SequenceRequest, Token
from coordinator.core.effects import Crossed, Effect, Emit, Ended, Moved, Retried, Send
from coordinator.core.pools import Pools, Size
from coordinator.core.request import Request, State
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import BreakerSettings, HubSettings, PlacementLimits, RetryLimits
from coordinator.core.soft_pools import SoftPools
from coordinator.core.workers.registry import Registry
from prefill.limits import PrefillLimits, RoundLimits
from tests.coordinator.counted import assert_counted
from tests.engine.late_host_copies import LateHostCopier
from tests.simulation.fake_engine import (
    LAYOUT,
    PAGES_ALONE,
    Died,
    FakeEngine,
    Killed,
    expected_rows,
)
from tests.simulation.fake_overlap import OverlappingEngine, OverlappingLimits, RandomShares
from tests.simulation.late_copies import LateCopies
from tests.simulation.node import ChangingDrafts, Node
from tests.worker.made import make_worker
from transport.copy.selftest import write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.errors import PeerGone
from transport.wire.layout import PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import (
    Decode,
    Dismissed,
    Generate,
    Heartbeat,
    Hello,
    Prefill,
    Targets,
)
from transport.wire.sampling import Constraint, SamplingParams, StopRule
from transport.wire.token_ids import packed
from worker.capabilities import capabilities_of
from worker.settings import HandoffSettings, PrefixCacheSettings
from worker.spread.group import Group

KEYS = (("", 1, 0), ("often", 1, 0), ("heavy", 5, 0), ("first", 2, 1))


class Cluster:
    """Coordinator's lifecycle and its workers; ``tick`` lets one random thing happen."""

    def __init__(
        self,
        rng: random.Random,
        *,
        lookahead: int,
        size: PoolSize,
        settings: HubSettings | None = None,
        retries: RetryLimits | None = None,
        breakers: BreakerSettings | None = None,
        max_faults: int = 1_000,
        pull_timeout_s: float = 10_000.0,
        dies_at: int = 0,
        nan_share: float = 0.0,
        soft: SoftPools | None = None,
    ) -> None:
        self.rng, self.lookahead, self.size = rng, lookahead, size
        self.now = 0.0
        self.keys = rng.choice([KEYS[:1], KEYS])
        self.offer_ttl_s = rng.choice([0.15, 1.0, 10_000.0])
        self.pull_timeout_s, self.dies_at = pull_timeout_s, dies_at
        self.nan_share = nan_share
        self.prefix_cache = PrefixCacheSettings(
            enabled=rng.random() < 0.8, min_saved_tokens=rng.choice([64, 64, 128])
        )
        self.host_blocks = rng.choice([0, 15, 40, 200])
        self.layout = rng.choice([LAYOUT, LAYOUT, PAGES_ALONE])
        self.registry = Registry(breakers)
        self.effects: list[Effect] = []
        self.lifecycle = Lifecycle(
            self.registry,
            PlacementLimits(max_tokens_ahead=256),
            self.effects.append,
            lambda: self.now,
            monotonic=lambda: self.now,
            settings=settings,
            retries=replace(retries or RetryLimits(), max_faults=max_faults),
            soft=soft,
        )
        self.pools = Pools(self.registry, lambda worker, role: self.lifecycle.roles_changed())
        self.num_changed = 0
        self.verifies = rng.random() < 0.5  # of workers of any role: each of them takes handoffs
        self.nodes: dict[str, Node] = {}
        self.memories: dict[str, CacheTensors] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, list[State]] = {}
        self.open: dict[str, Request] = {}
        self.codes: dict[str, str] = {}
        self.num_placed: Counter[str] = Counter()  # orders by worker
        self.num_deaths: Counter[str] = Counter()  # of workers, by request aboard
        self.num_moved: Counter[str] = Counter()  # moves by outcome, and by reason
        self.num_crossed: Counter[str] = Counter()
        self.num_retried = self.num_preempted = 0
        self.dismissed = set[str]()  # draining workers that may end
        self._count = 0

    # ---- workers

    def add_worker(
        self,
        role: str,
        size: PoolSize | None = None,
        *,
        nan: bool = False,
        stuck: bool = False,
        any_role: bool = False,
    ) -> str:
        self._count += 1
        instance, size = f"{role}-{self._count}", size or self.size
        kind = OverlappingEngine if self._overlaps(role, any_role) else FakeEngine
        engine = kind(
            size, nan=lambda: self.rng.random() < (1.0 if nan else self.nan_share),
            dies_at=self.dies_at, guesses_right=lambda: self.rng.random() < 0.7,
            layout=self.layout,
        )  # fmt: skip
        export = MemoryExport("shm", instance, 1, self.layout, size)
        longest = size.num_pages * LAYOUT.page_size
        group = self._spread_membership(instance, role, engine, any_role)
        hello = Hello(
            instance, role, "m", "cpu", 1, longest, size.num_state_slots, export,
            spread=group and group.export,
            other_roles=capabilities_of(role, any_role=any_role).other_roles,
        )  # fmt: skip
        node = Node(hello, engine)
        session = SimpleNamespace(
            send=node.outbox.append, in_socket_s=0.0, wake=lambda: None, targets=Targets(2.0, 0.05)
        )
        if role != "prefill" or any_role or self.prefix_cache.enabled:
            node.copies = LateCopies(engine.cache, self.rng, self._find_memory, stuck=stuck)
        handoff = HandoffSettings(
            self.offer_ttl_s, self.pull_timeout_s,
            verify=self.verifies if any_role else role == "prefill" and self.rng.random() < 0.5,
        )  # fmt: skip
        if self.host_blocks and self.prefix_cache.enabled:
            node.host = LateHostCopier(engine.cache, 1, self.host_blocks)
        beside = 128 if role == "prefill" else self.rng.choice([64, 128])
        limits = RoundLimits(PrefillLimits(128, 4), beside)
        if kind is OverlappingEngine:
            limits = OverlappingLimits(PrefillLimits(128, 4), 1)
        node.pool = make_worker(
            engine, session, role, instance=instance,
            limits=limits, handoff=handoff,
            puller=node.copies, lookahead=self.lookahead, clock=lambda: self.now,
            drafts=ChangingDrafts(self.rng), prefix_cache=self.prefix_cache,
            host=node.host, group=group, any_role=any_role,
            awake_s=0.1 * (self._count % 2),
        )  # fmt: skip
        if kind is OverlappingEngine:
            node.pool._room.shares = RandomShares(self.rng)
        self.nodes[instance] = node
        self.memories[instance] = engine.cache
        write_pattern(engine.cache, instance)
        self.registry.add(hello, self.now)
        self.lifecycle.worker_joined(instance)
        self._apply()
        return instance

    def _overlaps(self, role: str, any_role: bool) -> bool:
        """Whether the next worker computes long prompts beside steps: each other one."""
        return self._count % 2 == 0

    def _spread_membership(
        self, instance: str, role: str, engine: FakeEngine, any_role: bool
    ) -> Group | None:
        """Of a worker that may compute steps together with others (spread_cluster.py)."""
        return None

    def _is_held(self, node: Node) -> bool:
        """Whether its process does not run now, while its device does."""
        return False

    def _find_memory(self, export: MemoryExport) -> CacheTensors:
        if export.handle not in self.nodes:
            raise PeerGone(export.handle)
        return self.memories[export.handle]

    def kill_worker(self, instance: str) -> None:
        """kill -9: what it had not sent is gone; its memory stays for those who mapped it."""
        del self.nodes[instance]
        self.num_deaths.update(self.registry.require(instance).load.requests.keys())
        self.lifecycle.worker_lost(instance)
        self._apply()

    def drain_worker(self, instance: str) -> None:
        """SIGTERM: it takes no new work, and finishes what it has."""
        self.lifecycle.worker_draining(self.registry.require(instance))
        self._apply()

    def change_pools(self, prefill: int, decode: int) -> None:
        """Assign roles, as an operator does."""
        self.num_changed += len(self.pools.assign(Size(prefill, decode)))
        self._apply()

    def restore_pools(self) -> None:
        """As at a heartbeat, after workers came or went."""
        self.pools.restore()
        self._apply()

    def stop_worker(self, instance: str) -> None:
        """It leaves; what it has not finished it gives back."""
        node = self.nodes[instance]
        node.pool.fail_all()
        while node.outbox:
            self._deliver(node)
        del self.nodes[instance]
        self.lifecycle.worker_lost(instance, "goodbye")
        self._apply()

    # ---- clients

    def submit(self, prompt: tuple[int, ...], stop: StopRule) -> str:
        """Every third request asks for the log-probabilities of its prompt; every fourth has a
        grammar, which takes workers any time to compile. Every second cluster has three keys."""
        request_id = f"r{len(self.outputs)}"
        self.outputs[request_id] = []
        self.ends[request_id] = []
        sampling = SamplingParams(
            prompt_logprobs=0 if len(self.outputs) % 3 == 0 else None,
            constraint=Constraint("any") if len(self.outputs) % 4 == 0 else None,
        )
        key, weight, priority = self.rng.choice(self.keys)
        spec = SequenceRequest(
            request_id, packed(prompt), sampling, stop, key=key, weight=weight, priority=priority
        )
        self.open[request_id] = self.lifecycle.submit(spec, self.now)
        self._apply()
        return request_id

    def cancel(self, request_id: str) -> None:
        self.lifecycle.cancel(self.open[request_id])
        self._apply()

    # ---- time

    def assert_all_free(self) -> None:
        """No worker holds a sequence, a page or a state slot."""
        for node in self.nodes.values():
            assert node.pool is not None
            gauges, pools = node.pool.gauges(), node.hello.memory.pools
            assert gauges.accounting_error == ""
            free = gauges.free_pages, gauges.free_state_slots
            assert free == (pools.num_pages, pools.num_state_slots)
            assert node.pool.held() == ()

    def tick(self) -> None:
        """One random event: a message delivered, a loop round, a device step, a copy."""
        self.now += 0.001
        if self.rng.random() < 0.002:
            self.lifecycle.tick()
            self._apply()
        if not self.nodes:
            return
        node = self.rng.choice(list(self.nodes.values()))
        events = []
        if not self._is_held(node):
            events.append(lambda: self._round(node))
            if node.inbox:
                events.append(lambda: node.pool.handle(node.inbox.popleft()))
            if node.may_beat and self.rng.random() < 0.2:
                events.append(lambda: self._heartbeat(node))
        if node.outbox:
            events.append(lambda: self._deliver(node))
        if node.engine.may_run:
            events.append(node.engine.run_one)
        if node.engine.compiling and self.rng.random() < 0.1:
            events.append(lambda: node.engine.compiling.pop(0).set_result(None))
        if node.copies is not None and node.copies.queue:
            events.append(lambda: node.copies.queue.popleft().execute())
        if node.host is not None and node.host.under_way:
            events.append(self.rng.choice(node.host.under_way).step)
        if not events:
            return
        try:
            self.rng.choice(events)()
        except Killed:
            """Its process has ended while it waited for its device."""
        except Died:
            self.kill_worker(node.hello.instance)
            self.add_worker(node.hello.role)

    def _round(self, node: Node) -> None:
        # A process drains its socket before it steps.
        while node.inbox and self.rng.random() < 0.8:
            node.pool.handle(node.inbox.popleft())
        node.has_read_all |= not node.inbox
        node.pool.step()
        node.pool.publish_prefixes()
        assert node.pool.gauges().accounting_error == ""

    def _heartbeat(self, node: Node) -> None:
        node.outbox.append(Heartbeat(node.pool.gauges(), node.pool.held()))
        node.has_read_all = False

    def _deliver(self, node: Node) -> None:
        instance, message = node.hello.instance, node.outbox.popleft()
        match type(message).__name__:
            case "PromptLogprobs":
                self.lifecycle.prompt_logprobs(instance, message)
            case "LastChunk":
                self.lifecycle.last_chunk(instance, message)
            case "Prefilled":
                self.lifecycle.prefilled(instance, message)
            case "Settled":
                self.lifecycle.settled(instance, message)
            case "TransferDone":
                self.lifecycle.transfer_done(instance, message)
            case "Tokens":
                self.lifecycle.tokens(instance, message)
            case "PrefixesChanged":
                self.lifecycle.prefixes_changed(instance, message)
            case "PeerTested":
                self.lifecycle.peer_tested(instance, message)
            case "Failed":
                self.lifecycle.failed(instance, message)
            case "Heartbeat":
                worker = self.registry.get(instance)
                worker.take_gauges(message.gauges)
                self.lifecycle.reconcile(worker, set(message.held), heartbeat_s=0.0)
        self._apply()

    def _check_rows(self, request: Request, token: Token) -> None:
        """The prompt's log-probabilities come whole, with the first token, to those that asked."""
        spec, is_first = request.spec, not self.outputs[request.request_id]
        asked = is_first and spec.sampling.prompt_logprobs is not None
        expected = expected_rows(tuple(spec.prompt_ids)) if asked else b""
        assert b"".join(token.prompt_logprobs) == expected

    def _apply(self) -> None:
        effects, self.effects[:] = list(self.effects), []
        for effect in effects:
            match effect:
                case Send(instance=instance, message=Dismissed()):
                    self.dismissed.add(instance)
                case Send(instance=instance, message=message):
                    self.num_placed[instance] += isinstance(message, Prefill | Decode | Generate)
                    if instance in self.nodes:
                        self.nodes[instance].inbox.append(message)
                case Emit(request=request, token=token):
                    self._check_rows(request, token)
                    self.outputs[request.request_id].append(token.token_id)
                case Moved(reason=reason, stayed=stayed):
                    self.num_moved["stayed" if stayed else "moved"] += 1
                    self.num_moved[reason] += 1
                case Crossed(what=what):
                    self.num_crossed[what] += 1
                case Retried(request=request, code=code):
                    self.num_retried += code != "preempted"  # to make room for another key
                    self.num_preempted += code == "preempted"
                    assert code != "lost_at_worker", f"{request.request_id} was not lost"
                case Ended(request=request):
                    self.ends[request.request_id].append(request.state)
                    self.codes[request.request_id] = request.code
                    self.open.pop(request.request_id, None)
        for worker in self.registry.all():
            assert_counted(worker)
        # A request ended inside its own submit was never in ``open`` when it ended.
        self.open = {k: r for k, r in self.open.items() if not r.state.terminal}
