"""A whole cluster in one thread: real lifecycle, pools, books and copies, with the network, the
GPU's command queue and the copy stream advanced one random event at a time.

The fake engine's cache holds real content: each token's id sits at its position of its page,
the state slot is a running hash of all tokens. The next token is a function of what the cache
holds, so a page or a state slot that was reused, zeroed, torn or swapped at any moment changes
the text, and every text is compared with the one a lone engine would give.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from colocated.limits import ColocatedLimits
from coordinator.core.breaker import BreakerSettings
from coordinator.core.contract import SequenceRequest
from coordinator.core.effects import Effect, Emit, Ended, PlacedAnew, Send
from coordinator.core.hub_settings import HubSettings
from coordinator.core.lifecycle import Lifecycle
from coordinator.core.placement import PlacementLimits
from coordinator.core.registry import Registry
from coordinator.core.request import Request, State
from coordinator.core.trials import TrialLimits
from engine.batch import Binding, ForwardBatch, Sampled, StepResult
from prefill.scheduler import PrefillLimits
from tests.coordinator.counted import assert_counted
from transport.copy.pull import NoPeers, Wanted, copy_offer
from transport.copy.region import Region
from transport.copy.selftest import write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.errors import PeerGone
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.messages import Decode, Generate, Heartbeat, Hello, MemoryExport, Prefill
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed
from worker.settings import HandoffSettings
from worker.worker import Worker

EOS = 7
VOCAB = 64
POISON = 99
LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def advance(state: int, token: int) -> int:
    return (state * 31 + token + 1) % 65_521


def next_token(state: int, context: list[int]) -> int:
    return (state + 13 * sum(context) + 5 * len(context)) % VOCAB


def expected_output(prompt: tuple[int, ...], stop: StopRule) -> list[int]:
    """What one engine alone would answer."""
    tokens, state = list(prompt), 0
    for token in tokens:
        state = advance(state, token)
    while True:
        token = next_token(state, tokens)
        tokens.append(token)
        if stop.finish_reason(num_output=len(tokens) - len(prompt), token_id=token):
            return tokens[len(prompt) :]
        state = advance(state, token)


class Died(Exception):
    """What a worker was given to compute has ended its process."""


class FakeEngine:
    """Steps run late: in launch order, when the device gets to them or the host asks.

    A row's logits are not finite when ``nan`` says so. A sequence with the token ``POISON`` raises
    Died when it gets ``dies_at`` tokens long; with 0 its logits are not finite.
    """

    def __init__(
        self, size: PoolSize, *, nan: Callable[[], bool] = lambda: False, dies_at: int = 0
    ) -> None:
        self.layout, self.pools, self.nan, self.dies_at = LAYOUT, size, nan, dies_at
        buffer = torch.zeros(Region.of(LAYOUT, size).size_bytes, dtype=torch.uint8)
        self.cache = CacheTensors.over(buffer, LAYOUT, size)
        self.next_token = [0] * size.num_state_slots
        self.queue: deque[FakeStep] = deque()
        self.config = SimpleNamespace(poison=True)
        for tensor in (self.cache.kv, self.cache.conv, self.cache.recurrent):
            tensor.fill_(float("nan"))

    def poison_pages(self, ids: list[int]) -> None:
        self.cache.kv[ids] = float("nan")

    def poison_slot(self, state_slot: int) -> None:
        self.cache.conv[state_slot] = float("nan")
        self.cache.recurrent[state_slot] = float("nan")

    def prepare(self, sampling: SamplingParams) -> None:
        """Nothing to prepare."""

    def bind(self, binding: Binding) -> None:
        output = binding.output_ids
        self.queue.append(FakeStep(self, None, (binding.state_slot, output[-1] if output else -1)))

    def launch(self, batch: ForwardBatch) -> "FakeStep":
        step = FakeStep(self, batch, None)
        self.queue.append(step)
        return step

    def run_one(self) -> None:
        self.queue.popleft().execute()


@dataclass(eq=False)
class FakeStep:
    engine: FakeEngine
    batch: ForwardBatch | None
    bound: tuple[int, int] | None
    sampled: list[Sampled | None] = field(default_factory=list)
    executed: bool = False

    def execute(self) -> None:
        self.executed = True
        if self.bound is not None:
            self.engine.next_token[self.bound[0]] = self.bound[1]
        for row in self.batch.rows if self.batch else ():
            self.sampled.append(self._row(row))

    def _row(self, row) -> Sampled | None:
        engine = self.engine
        cache, slot = engine.cache, row.state_slot
        tokens = row.token_ids if row.token_ids is not None else (engine.next_token[slot],)
        state = 0 if row.start == 0 else _int(cache.recurrent[slot].item())
        for offset, token in enumerate(tokens):
            position = row.start + offset
            page = row.block_table[position // LAYOUT.page_size]
            cache.kv[page, 0, :, position % LAYOUT.page_size] = float(token)
            state = advance(state, token)
        cache.recurrent[slot] = float(state)
        cache.conv[slot] = float(tokens[-1])
        if not row.sample:
            return None
        length = row.start + len(tokens)
        pages = cache.kv[list(row.block_table), 0, 0].reshape(-1)[:length]
        context = [_int(value) for value in pages.tolist()]
        if POISON in context and length >= engine.dies_at > 0:
            raise Died
        if engine.nan() or (POISON in context and not engine.dies_at):
            return Sampled(None)
        engine.next_token[slot] = next_token(state, context)
        return Sampled(engine.next_token[slot])

    def result(self) -> StepResult:
        while not self.executed:
            self.engine.run_one()
        return StepResult(tuple(self.sampled))


def _int(value: float) -> int:
    """Poison reads as a token that nobody expects, as it would on a real device."""
    return -1_000_003 if value != value else int(value)


class LatePull:
    def __init__(self, copy) -> None:
        self._copy, self._outcome, self._error = copy, None, None
        self._done = False

    def execute(self) -> None:
        self._done = True
        try:
            self._outcome = self._copy()
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        return self._done

    def wait(self, timeout_s: float) -> bool:
        return self._done

    def result(self):
        if self._error:
            raise self._error
        return self._outcome


class LateCopies:
    """The copy stream: a pull executes at once, ahead of steps launched before it, or whenever
    the simulation gets to it; or, ``stuck``, never."""

    def __init__(
        self,
        own: CacheTensors,
        rng: random.Random,
        find: Callable[[MemoryExport], CacheTensors],
        *,
        stuck: bool = False,
    ) -> None:
        self._own = own
        self._stuck = stuck
        self._rng = rng
        self._find = find
        self._peers: dict[str, CacheTensors] = {}
        self.queue: deque[LatePull] = deque()

    def open(self, instance: str, export: MemoryExport) -> None:
        assert instance not in self._peers, "opened twice"
        self._peers[instance] = self._find(export)

    def close_peer(self, instance: str) -> None:
        self._peers.pop(instance, None)

    def pull(self, wanted: list[Wanted]) -> list[LatePull]:
        return [self._pull(each) for each in wanted]

    def _pull(self, wanted: Wanted) -> LatePull:
        peer = self._peers[wanted.offer.instance]
        late = LatePull(lambda: copy_offer(self._own, peer, wanted))
        if wanted.in_probe or (not self.queue and self._rng.random() < 0.3 and not self._stuck):
            late.execute()
        elif not self._stuck:
            self.queue.append(late)
        return late

    def close(self) -> bool:
        self.queue.clear()
        return True


@dataclass(eq=False)
class Node:
    """One worker process: its pool, its mailboxes, its device."""

    hello: Hello
    engine: FakeEngine
    pool: Worker | None = None
    copies: LateCopies | None = None
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    has_read_all: bool = False

    @property
    def may_beat(self) -> bool:
        """It reads all that has come between two heartbeats, and the next one goes out later than
        the one before is read."""
        return self.has_read_all and not any(isinstance(m, Heartbeat) for m in self.outbox)


class Cluster:
    """Coordinator's lifecycle and its workers; ``tick`` lets one random thing happen."""

    def __init__(
        self,
        rng: random.Random,
        *,
        lookahead: int,
        size: PoolSize,
        settings: HubSettings | None = None,
        trials: TrialLimits | None = None,
        breakers: BreakerSettings | None = None,
        max_faults: int = 1_000,
        pull_timeout_s: float = 10_000.0,
        dies_at: int = 0,
        nan_share: float = 0.0,
    ) -> None:
        self.rng, self.lookahead, self.size = rng, lookahead, size
        self.now = 0.0
        self.offer_ttl_s = rng.choice([0.15, 1.0, 10_000.0])
        self.pull_timeout_s, self.dies_at = pull_timeout_s, dies_at
        self.nan_share = nan_share
        self.registry = Registry(breakers)
        self.effects: list[Effect] = []
        self.lifecycle = Lifecycle(
            self.registry,
            PlacementLimits(max_tokens_ahead=256),
            self.effects.append,
            lambda: self.now,
            monotonic=lambda: self.now,
            settings=settings,
            trials=trials,
            max_faults=max_faults,
        )
        self.nodes: dict[str, Node] = {}
        self.memories: dict[str, CacheTensors] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, list[State]] = {}
        self.open: dict[str, Request] = {}
        self.codes: dict[str, str] = {}
        self.num_placed: Counter[str] = Counter()  # orders by worker
        self.num_deaths: Counter[str] = Counter()  # of workers, by request aboard
        self._count = 0

    # ---- workers

    def add_worker(
        self, role: str, size: PoolSize | None = None, *, nan: bool = False, stuck: bool = False
    ) -> str:
        self._count += 1
        instance, size = f"{role}-{self._count}", size or self.size
        engine = FakeEngine(
            size, nan=lambda: self.rng.random() < (1.0 if nan else self.nan_share),
            dies_at=self.dies_at,
        )  # fmt: skip
        export = MemoryExport("shm", instance, 1, LAYOUT, size)
        longest = size.num_pages * LAYOUT.page_size
        hello = Hello(instance, role, "m", "cpu", 1, longest, size.num_state_slots, export)
        node = Node(hello, engine)
        session = SimpleNamespace(send=node.outbox.append, in_socket_s=0.0)
        if role == "decode":
            node.copies = LateCopies(engine.cache, self.rng, self._find_memory, stuck=stuck)
        handoff = HandoffSettings(
            self.offer_ttl_s, self.pull_timeout_s,
            verify=role == "prefill" and self.rng.random() < 0.5,
        )  # fmt: skip
        beside = 128 if role == "prefill" else self.rng.choice([64, 128])
        node.pool = Worker(
            engine, session, role, instance, ColocatedLimits(PrefillLimits(128, 4), beside),
            handoff, node.copies or NoPeers(), lookahead=self.lookahead, clock=lambda: self.now,
        )  # fmt: skip
        self.nodes[instance] = node
        self.memories[instance] = engine.cache
        write_pattern(engine.cache, instance)
        self.registry.add(hello, self.now)
        self.lifecycle.introduce(instance)
        self._apply()
        return instance

    def _find_memory(self, export: MemoryExport) -> CacheTensors:
        if export.handle not in self.nodes:
            raise PeerGone(export.handle)
        return self.memories[export.handle]

    def kill_worker(self, instance: str) -> None:
        """kill -9: what it had not sent is gone; its memory stays for those who mapped it."""
        del self.nodes[instance]
        self.num_deaths.update(self.registry.require(instance).assigned.keys())
        self.lifecycle.worker_lost(instance)
        self._apply()

    def drain_worker(self, instance: str) -> None:
        """SIGTERM: it takes no new work, and finishes what it has."""
        self.lifecycle.drain(self.registry.require(instance))
        self._apply()

    def stop_worker(self, instance: str) -> None:
        """It leaves; what it has not finished it gives back."""
        node = self.nodes[instance]
        node.pool.give_back()
        while node.outbox:
            self._deliver(node)
        del self.nodes[instance]
        self.lifecycle.worker_lost(instance, died=False)
        self._apply()

    # ---- clients

    def submit(self, prompt: tuple[int, ...], stop: StopRule) -> str:
        request_id = f"r{len(self.outputs)}"
        self.outputs[request_id] = []
        self.ends[request_id] = []
        spec = SequenceRequest(request_id, packed(prompt), SamplingParams(), stop)
        self.open[request_id] = self.lifecycle.submit(spec, self.now)
        self._apply()
        return request_id

    def cancel(self, request_id: str) -> None:
        self.lifecycle.cancel(self.open[request_id])
        self._apply()

    # ---- time

    def tick(self) -> None:
        """One random event: a message delivered, a loop round, a device step, a copy."""
        self.now += 0.001
        if self.rng.random() < 0.002:
            self.lifecycle.tick()
            self._apply()
        if not self.nodes:
            return
        node = self.rng.choice(list(self.nodes.values()))
        events = [lambda: self._round(node)]
        if node.inbox:
            events.append(lambda: node.pool.handle(node.inbox.popleft()))
        if node.outbox:
            events.append(lambda: self._deliver(node))
        if node.engine.queue:
            events.append(node.engine.run_one)
        if node.copies is not None and node.copies.queue:
            events.append(lambda: node.copies.queue.popleft().execute())
        if node.may_beat and self.rng.random() < 0.2:
            events.append(lambda: self._heartbeat(node))
        try:
            self.rng.choice(events)()
        except Died:
            self.kill_worker(node.hello.instance)
            self.add_worker(node.hello.role)

    def _round(self, node: Node) -> None:
        # A process drains its socket before it steps.
        while node.inbox and self.rng.random() < 0.8:
            node.pool.handle(node.inbox.popleft())
        node.has_read_all |= not node.inbox
        node.pool.step()
        assert node.pool.gauges().accounting_error == ""

    def _heartbeat(self, node: Node) -> None:
        node.outbox.append(Heartbeat(node.pool.gauges(), node.pool.held()))
        node.has_read_all = False

    def _deliver(self, node: Node) -> None:
        instance, message = node.hello.instance, node.outbox.popleft()
        match type(message).__name__:
            case "Prefilled":
                self.lifecycle.prefilled(instance, message)
            case "TransferDone":
                self.lifecycle.transfer_done(instance, message)
            case "Tokens":
                self.lifecycle.tokens(instance, message)
            case "PeerTested":
                self.lifecycle.peer_tested(instance, message)
            case "Failed":
                self.lifecycle.failed(instance, message)
            case "Heartbeat":
                worker = self.registry.get(instance)
                self.lifecycle.reconcile(worker, set(message.held), heartbeat_s=0.0)
        self._apply()

    def _apply(self) -> None:
        effects, self.effects[:] = list(self.effects), []
        for effect in effects:
            match effect:
                case Send(instance=instance, message=message):
                    self.num_placed[instance] += isinstance(message, Prefill | Decode | Generate)
                    if instance in self.nodes:
                        self.nodes[instance].inbox.append(message)
                case Emit(request=request, token=token):
                    self.outputs[request.request_id].append(token.token_id)
                case PlacedAnew(request=request, code=code):
                    assert code != "lost_at_worker", f"{request.request_id} was not lost"
                case Ended(request=request):
                    self.ends[request.request_id].append(request.state)
                    self.codes[request.request_id] = request.code
                    self.open.pop(request.request_id, None)
        for worker in self.registry.all():
            assert_counted(worker)
        # A request ended inside its own submit was never in ``open`` when it ended.
        self.open = {k: r for k, r in self.open.items() if not r.state.terminal}
