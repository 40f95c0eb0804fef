"""A lifecycle with workers, driven event by event."""

from msgspec.structs import replace

from coordinator.core.contract import SequenceRequest
from coordinator.core.effects import Charged, Effect, Send
from coordinator.core.request import Request, State
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.registry import Registry
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import (
    Decode,
    Dismissed,
    Failed,
    Generate,
    Hello,
    PeerLeft,
    PeerTested,
    Prefill,
    Prefilled,
    TokenOut,
    Tokens,
    TransferDone,
)
from transport.wire.offers import Offer
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import from_wire, packed

LAYOUT = CacheLayout("float32", 16, 1, 1, 1, 1, 1, 1, 1, 1, 1)


def ids_of(order: Prefill | Decode | Generate) -> list[int]:
    return from_wire(order.token_ids).tolist()


class Desk:
    """A lifecycle with workers p-1, p-2, d-1, d-2 and a clock that the test turns."""

    max_tokens = 8
    """Of the answers to the next requests."""
    num_slots = 4
    """State slots of the next workers."""

    def __init__(
        self, workers=("p-1", "p-2", "d-1", "d-2"), any_role: bool = False, **options
    ) -> None:
        self._any_role = any_role
        self.now = 100.0
        self.names: list[str] = []
        self.introduced: list[tuple[str, object]] = []  # what was sent as the last worker joined
        self.registry = Registry()
        self._effects: list[Effect] = []
        self.life = Lifecycle(
            self.registry,
            PlacementLimits(),
            self._effects.append,
            lambda: self.now,
            monotonic=lambda: self.now,
            **options,
        )
        for instance in workers:
            self.join(instance)

    def join(self, instance: str, num_pages: int = 64) -> None:
        role = {"p": "prefill", "d": "decode", "b": "colocated"}[instance[0]]
        export = MemoryExport("shm", instance, 1, LAYOUT, PoolSize(num_pages, self.num_slots))
        longest = num_pages * LAYOUT.page_size
        hello = Hello(instance, role, "m", "cpu", 1, longest, self.num_slots, export)
        if self._any_role:
            hello = replace(hello, other_roles=("prefill" if role == "decode" else "decode",))
        self.registry.add(hello, self.now)
        self.life.worker_joined(instance)
        self.introduced = self.sent()
        for other in self.registry.of("decode" if role == "prefill" else "prefill"):
            prefill, decode = sorted((instance, other.instance), reverse=True)
            self.tested(prefill, decode)
        for other in self.registry.of(role) if role != "prefill" else ():
            if other.instance != instance:
                self.tested(instance, other.instance)
                self.tested(other.instance, instance)

    def tested(self, prefill: str, decode: str, problem: str = "") -> None:
        self.life.peer_tested(decode, PeerTested(prefill, 100, 0.1, problem))

    def submit(self, request_id: str = "r", length: int = 10, sampling=None):
        self.names.append(request_id)
        stop = StopRule(self.max_tokens, stop_token_ids=(7,))
        prompt_ids = packed(range(length))
        spec = SequenceRequest(request_id, prompt_ids, sampling or SamplingParams(), stop)
        return self.life.submit(spec, self.now)

    def orders(self) -> list[tuple[str, object]]:
        """What was sent about requests since the last time."""
        of_workers = PeerLeft | Dismissed
        return [(to, message) for to, message in self.sent() if not isinstance(message, of_workers)]

    def take_effects(self) -> list[Effect]:
        """What was carried out since the last time."""
        effects, self._effects[:] = list(self._effects), []
        return effects

    def sent(self) -> list[tuple[str, object]]:
        effects = self.take_effects()
        return [(e.instance, e.message) for e in effects if isinstance(e, Send)]

    def prefill(self, request, token: int = 1, finish=None) -> None:
        offer = Offer(request.prefill_worker, (0,), 2, 3, request.num_tokens)
        out = TokenOut(request.request_id, request.attempt, len(request.output_ids), token,
                       finish=finish)  # fmt: skip
        message = Prefilled(out, None if finish else offer, 1.0, 2.0)
        self.life.prefilled(request.prefill_worker, message)

    def begin(self, request, token: int = 1, finish=None) -> None:
        """Its first token, at a worker of both."""
        out = TokenOut(request.request_id, request.attempt, len(request.output_ids), token,
                       finish=finish)  # fmt: skip
        self.life.prefilled(request.prefill_worker, Prefilled(out, None, 1.0, 2.0))

    def land(self, request) -> None:
        landed = TransferDone(
            request.request_id, request.attempt, 100, in_socket_s=0.01, wait_memory_s=0.2,
            launch_s=0.001, copy_s=0.5, boundary_s=0.1,
        )  # fmt: skip
        self.life.transfer_done(request.decode_worker, landed)

    def step(self, request, token: int = 2, finish=None, first_steps=()) -> None:
        out = TokenOut(request.request_id, request.attempt, len(request.output_ids), token,
                       finish=finish)  # fmt: skip
        self.life.tokens(request.decode_worker, Tokens((out,), first_steps))


def fail(desk: Desk, request: Request, code: str) -> None:
    instance = request.decode_worker or request.prefill_worker
    desk.life.failed(instance, Failed(request.request_id, request.attempt, code, "broken", True))


def charged(desk: Desk) -> list[tuple[str, str]]:
    effects = desk.take_effects()
    return [(e.worker.instance, e.code) for e in effects if isinstance(e, Charged)]


def compute(desk: Desk, request: Request) -> None:
    """Through both pools, from where it is."""
    if request.state is State.PREFILLING:
        desk.prefill(request)
    desk.land(request)
    desk.step(request, finish="length")


def grown(desk: Desk, request: Request, num_pages: int) -> None:
    """The request has so many pages more, the last of them with its newest token."""
    layout = desk.registry.require(request.decode_worker).layout
    length = request.num_tokens + num_pages * layout.page_size
    request.output_ids.extend([2] * (length - request.num_tokens - 1))
    desk.step(request)


def breaker_of(desk: Desk, instance: str) -> str:
    return desk.registry.require(instance).status(desk.now).breaker
