"""All live workers, which of them can pull from each other, and whom each is told about. Pure.

``Registry`` is the public object of this room, with the ``Worker`` objects that it hands out. All
other rooms may call it. The hub also builds membership.py and connections.py, which decide who is
in the registry. All other files here are private.

A worker of any role counts as a prefill and as a decode worker. Which worker opens whose memory:

    decode workers                 every prefill worker's, for handoffs, and every other decode
                                   worker's, for sequences that move
    colocated workers              every other colocated worker's, for sequences that move
    workers that compute prompts   every other worker's that keeps prefixes, to pull them
"""

from itertools import product

from msgspec import structs

from coordinator.core.settings import BreakerSettings
from coordinator.core.workers.breaker import Breaker, PairBreakers
from coordinator.core.workers.kept_prefixes import KeptPrefixes
from coordinator.core.workers.pairs import Pairs
from coordinator.core.workers.worker import Worker
from transport.wire.errors import LayoutMismatch, RoleMismatch
from transport.wire.layout import CHUNK_ALIGNMENT
from transport.wire.messages import Hello, PeerJoined, PeerLeft, Role, ToWorker
from transport.wire.offers import PrefixesChanged
from transport.wire.reports import WorkerGauges
from transport.wire.seen_pages import SeenPages

MAX_SEEN_PAGES = 1 << 17
"""Most pages of earlier prompts that are noted: 8 million tokens, in about 20 MB."""
MAX_PROMPT_PAGES = 512
"""Most pages noted of one prompt: 32,768 tokens, hashed and noted in 0.5 ms."""

_SEQUENCES_COME: frozenset[tuple[Role, Role]] = frozenset(
    {("decode", "prefill"), ("decode", "decode"), ("colocated", "colocated")}
)
"""Roles of a worker that pulls sequences, and of the worker that it pulls them from."""
Order = tuple[str, ToWorker]
"""A message and the worker that it is for."""


class Registry:
    """Every live worker by instance, and what is known about pairs of them."""

    def __init__(self, breakers: BreakerSettings | None = None) -> None:
        self._workers: dict[str, Worker] = {}
        self.breakers = breakers or BreakerSettings()
        self._longest_seen: dict[Role, int] = {}
        self.pairs = Pairs()
        """Pairs for handoffs to decode workers."""
        self.pair_breakers = PairBreakers(self.breakers)
        """Breakers of pairs for handoffs."""
        self.prefix_pairs = Pairs()
        """Pairs for prefixes, and for moves between colocated workers."""
        self.spread_pairs = Pairs()
        self.kept = KeptPrefixes(CHUNK_ALIGNMENT)
        self.seen = SeenPages(MAX_SEEN_PAGES, MAX_PROMPT_PAGES)
        """What earlier prompts began with."""

    def add(self, hello: Hello, now: float) -> Worker:
        size = hello.memory.pools
        gauges = WorkerGauges(free_pages=size.num_pages, free_state_slots=size.num_state_slots)
        worker = Worker(hello, gauges, now, breaker=Breaker(self.breakers))
        if not self._workers:  # workers that join later have the same layout
            self.kept = KeptPrefixes(worker.layout.page_size)
        self._workers[hello.instance] = worker
        for role in hello.roles:
            longest = max(hello.max_seq_len, self.longest_seen(role))
            self._longest_seen[role] = longest
        return worker

    def remove(self, instance: str) -> Worker | None:
        """Remove a worker and all that is known about its pairs and kept prefixes."""
        self.pairs.forget(instance)
        self.pair_breakers.forget(instance)
        self.prefix_pairs.forget(instance)
        self.spread_pairs.forget(instance)
        self.kept.forget(instance)
        return self._workers.pop(instance, None)

    def introduce(self, worker: Worker) -> list[Order]:
        """Orders that tell a worker that has joined, and its peers, about each other."""
        orders: list[Order] = []
        for other in self.all():
            if _pulls_from(other, worker):
                orders.append(_introduction(worker, to=other))
            if _pulls_from(worker, other):
                orders.append(_introduction(other, to=worker))
        return orders

    def prefixes_changed(self, instance: str, message: PrefixesChanged) -> list[Order]:
        """Note which prefixes a worker keeps. The first time, return the orders that introduce it
        to workers that may pull them and do not know it yet."""
        worker = self.require(instance)
        self.kept.change(instance, message)
        if worker.keeps_prefixes:
            return []
        worker.keeps_prefixes = True
        return [
            _introduction(worker, to=other)
            for other in self.all()
            if _pulls_prefixes(other, worker) and not _pulls_handoffs(other, worker)
        ]

    def peers_left(self, worker: Worker) -> list[Order]:
        """Orders that let the peers of a removed worker unmap its memory."""
        pullers = [other for other in self.all() if _pulls_from(other, worker)]
        return [(puller.instance, PeerLeft(worker.instance)) for puller in pullers]

    def get(self, instance: str) -> Worker | None:
        return self._workers.get(instance)

    def require(self, instance: str) -> Worker:
        """The worker, which must be live."""
        return self._workers[instance]

    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def of(self, role: Role) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.role == role]

    def taking(self, role: Role) -> list[Worker]:
        """The workers of a role that take new work."""
        return [worker for worker in self.of(role) if not worker.draining]

    def prefilling(self) -> list[Worker]:
        """The prefill workers from which a decode worker can pull, as far as is known."""
        heard = {worker.instance: worker.heard_at for worker in self.taking("decode")}
        return [w for w in self.of("prefill") if not self.pairs.stranded(w.instance, heard)]

    def decode_computes_prompts(self) -> bool:
        """True if decode workers compute prompts because every prefill worker is gone or draining.
        Before the first prefill worker joins, prompts wait for it."""
        if not self.longest_seen("prefill") or not self.taking("decode"):
            return False
        return all(worker.draining for worker in self.prefilling())

    def decoding_from(self, exporter: str) -> list[Worker]:
        """The workers that take new work and can pull a sequence from this worker's memory, or have
        not tested it yet. Where all of them drain, and this worker too, those that drain: what it
        has computed would wait until its own drain ends."""
        worker = self._workers.get(exporter)
        if worker is None:
            return []
        able = [
            puller
            for puller in self._workers.values()
            if puller.role != "prefill"
            and (_keeps_own(puller, worker) or _pulls_handoffs(puller, worker))
            and not self.pairs_of(puller).broken(exporter, puller.instance)
        ]
        taking = [puller for puller in able if not puller.draining]
        return able if worker.draining and not taking else taking

    def proved_from(self, exporter: str) -> set[str]:
        """The workers of ``decoding_from`` whose test has shown that they can."""
        found = self.decoding_from(exporter)
        return {
            w.instance
            for w in found
            if w.instance == exporter or self.pairs_of(w).usable(exporter, w.instance)
        }

    def takers_from(self, exporter: str) -> list[Worker]:
        """The prefill workers that may decode, and have proved that they can pull a sequence from
        this worker's memory."""
        return [
            worker
            for worker in self.taking("prefill")
            if worker.can_be("decode")
            and worker.instance != exporter
            and self.pairs_of(worker).usable(exporter, worker.instance)
        ]

    def pairs_of(self, puller: Worker) -> Pairs:
        """The tested pairs in which this worker is the puller."""
        return self.pairs if puller.can_be("decode") else self.prefix_pairs

    def may_pull_prefix(self, puller: Worker, instance: str) -> bool:
        """True if the puller can read the memory of the worker ``instance``, and that worker's
        breaker is closed."""
        keeper = self._workers.get(instance)
        usable = self.pairs_of(puller).usable(instance, puller.instance)
        return usable and keeper is not None and keeper.breaker.closed

    def longest_seen(self, role: Role) -> int:
        """Tokens of the longest sequence that any worker of the role could hold, live or gone."""
        return self._longest_seen.get(role, 0)

    def holds(self, role: Role, num_tokens: int) -> bool:
        """True if a worker of the role takes new work and can hold ``num_tokens``."""
        return any(worker.hello.max_seq_len >= num_tokens for worker in self.taking(role))

    def missing_roles(self) -> tuple[Role, ...]:
        """Roles that are needed and have no worker that takes work."""
        taking = {worker.role for worker in self._workers.values() if not worker.draining}
        needed: tuple[Role, ...] = ("colocated",) if self.of("colocated") else ("prefill", "decode")
        return tuple(role for role in needed if role not in taking)

    def is_replaceable(self, worker: Worker) -> bool:
        """True if another worker of its role takes requests."""
        others = self.taking(worker.role)
        return any(other.breaker.closed for other in others if other is not worker)

    def hopeless(self) -> list[tuple[Worker, str]]:
        """Workers to end, each with the reason: probe after probe failed, and other workers do
        their work."""
        num_failed = self.breakers.max_failed_probes
        return [
            (worker, f"{num_failed} requests in a row failed as probes")
            for worker in self.all()
            if not worker.breaker.closed and worker.breaker.hopeless and self.is_replaceable(worker)
        ]

    def silent(self, now: float, dead_after_s: float) -> list[Worker]:
        """Workers that sent nothing for ``dead_after_s``."""
        return [w for w in self._workers.values() if now - w.heard_at > dead_after_s]

    def excuse(self, absent_s: float) -> None:
        """Shorten every worker's silence by ``absent_s``, in which this process did not listen."""
        for worker in self._workers.values():
            worker.heard_at += absent_s

    def require_compatible(self, hello: Hello) -> None:
        """Raise LayoutMismatch unless ``hello`` is of the model and cache layout of the live
        workers, and RoleMismatch if it would mix colocated and other workers."""
        for worker in self._workers.values():
            if (worker.hello.role == "colocated") != (hello.role == "colocated"):
                raise RoleMismatch(
                    f"role mismatch: {hello.role} at {hello.instance}, {worker.hello.role} at "
                    f"{worker.instance}; colocated and other workers do not mix"
                )
            if worker.hello.model != hello.model:
                raise LayoutMismatch(
                    f"model mismatch: {hello.model} at {hello.instance}, "
                    f"{worker.hello.model} at {worker.instance}; "
                    f"{_advice(worker.hello, hello)}"
                )
            worker.layout.require_same(hello.memory.layout, peer=hello.instance)


def _pulls_from(puller: Worker, worker: Worker) -> bool:
    return _pulls_handoffs(puller, worker) or _pulls_prefixes(puller, worker)


def _pulls_handoffs(puller: Worker, worker: Worker) -> bool:
    """True if sequences may come to ``puller`` from ``worker``, by handoff or move."""
    roles = product(puller.hello.roles, worker.hello.roles)
    return puller is not worker and not _SEQUENCES_COME.isdisjoint(roles)


def _keeps_own(puller: Worker, worker: Worker) -> bool:
    """True for a worker that was assigned to decode since it offered prompts: it continues what no
    other worker has pulled."""
    return puller is worker and worker.can_be("prefill")


def _pulls_prefixes(puller: Worker, worker: Worker) -> bool:
    computes_prompts = puller.can_be("prefill") or puller.can_be("colocated")
    return worker.keeps_prefixes and computes_prompts and puller is not worker


def _introduction(worker: Worker, *, to: Worker) -> Order:
    hands_off = to.can_be("decode") and worker.can_be("prefill")
    return to.instance, PeerJoined(worker.instance, worker.hello.memory, hands_off)


def _advice(ours: Hello, theirs: Hello) -> str:
    """What to do about two models that differ. With the draft layer, pages have one layer more."""
    here, there = ours.memory.layout, theirs.memory.layout
    num_more = there.num_attention_layers - here.num_attention_layers
    if abs(num_more) == 1 and here == structs.replace(
        there, num_attention_layers=here.num_attention_layers
    ):
        return (
            "only one of them makes drafts: give all workers the same checkpoint and the same "
            "BATON_SPECULATE"
        )
    if ours.draft_acceptance != theirs.draft_acceptance:
        return "give all workers the same BATON_DRAFT_ACCEPTANCE"
    return "give all workers the same checkpoint and the same BATON_QUANTIZE"
