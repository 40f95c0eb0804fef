"""All live workers, and which pairs of them can pull from each other. Pure."""

from msgspec import structs

from coordinator.core.workers.breaker import Breaker, BreakerSettings, PairBreakers
from coordinator.core.workers.kept_prefixes import KeptPrefixes
from coordinator.core.workers.pairs import Pairs
from coordinator.core.workers.worker import Worker
from transport.wire.errors import LayoutMismatch, RoleMismatch
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout
from transport.wire.messages import Hello, Role
from transport.wire.reports import WorkerGauges
from transport.wire.seen_pages import SeenPages

MAX_SEEN_PAGES = 1 << 17
"""What earlier prompts began with: 8 million tokens, in about 20 MB."""
MAX_PROMPT_PAGES = 512
"""Of each of them: 32,768 tokens, hashed and noted in 0.5 ms."""


class Registry:
    """Every live worker, by instance."""

    def __init__(self, breakers: BreakerSettings | None = None) -> None:
        self._workers: dict[str, Worker] = {}
        self.breakers = breakers or BreakerSettings()
        self._longest_seen: dict[Role, int] = {}
        self.pairs = Pairs()  # for handoffs
        self.pair_breakers = PairBreakers(self.breakers)  # of handoffs
        self.prefix_pairs = Pairs()
        self.spread_pairs = Pairs()
        self.kept = KeptPrefixes(CHUNK_ALIGNMENT)
        self.seen = SeenPages(MAX_SEEN_PAGES, MAX_PROMPT_PAGES)

    def add(self, hello: Hello, now: float) -> Worker:
        size = hello.memory.pools
        gauges = WorkerGauges(free_pages=size.num_pages, free_state_slots=size.num_state_slots)
        worker = Worker(hello, gauges, now, breaker=Breaker(self.breakers))
        if not self._workers:  # those that join later have the same layout
            self.kept = KeptPrefixes(worker.layout.page_size)
        self._workers[hello.instance] = worker
        longest = max(hello.max_seq_len, self.longest_seen(hello.role))
        self._longest_seen[hello.role] = longest
        return worker

    def remove(self, instance: str) -> Worker | None:
        self.pairs.forget(instance)
        self.pair_breakers.forget(instance)
        self.prefix_pairs.forget(instance)
        self.spread_pairs.forget(instance)
        self.kept.forget(instance)
        return self._workers.pop(instance, None)

    def get(self, instance: str) -> Worker | None:
        return self._workers.get(instance)

    def require(self, instance: str) -> Worker:
        """A worker that is known to be here."""
        return self._workers[instance]

    def all(self) -> list[Worker]:
        return list(self._workers.values())

    def of(self, role: Role) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.hello.role == role]

    def taking(self, role: Role) -> list[Worker]:
        """Those of a role that take new work."""
        return [worker for worker in self.of(role) if not worker.draining]

    def prefilling(self) -> list[Worker]:
        """Prefill workers from which a decode worker can pull, as far as is known."""
        heard = {worker.instance: worker.heard_at for worker in self.taking("decode")}
        return [w for w in self.of("prefill") if not self.pairs.stranded(w.instance, heard)]

    def standing_in(self) -> bool:
        """Whether decode workers compute prompts: there were prefill workers, and none takes work
        now. Before the first one joins, prompts wait for it."""
        if not self.longest_seen("prefill") or not self.taking("decode"):
            return False
        return all(worker.draining for worker in self.prefilling())

    def decoding_from(self, prefill: str) -> list[Worker]:
        """Decode workers that take new work and read this prefill worker's memory right, or have
        yet to prove it."""
        taking = self.taking("decode")
        return [w for w in taking if prefill not in self.pairs.broken_of(w.instance)]

    def pairs_of(self, puller: Worker) -> Pairs:
        """What is known of the workers that it pulls from."""
        return self.pairs if puller.hello.role == "decode" else self.prefix_pairs

    def may_pull_prefix(self, puller: Worker, instance: str) -> bool:
        """Whether it reads the memory of that worker right, and no faults keep requests away from
        there."""
        keeper = self._workers.get(instance)
        usable = self.pairs_of(puller).usable(instance, puller.instance)
        return usable and keeper is not None and keeper.breaker.closed

    def longest_seen(self, role: Role) -> int:
        """The longest sequence that any worker of the role could hold, gone or not."""
        return self._longest_seen.get(role, 0)

    def holds(self, role: Role, num_tokens: int) -> bool:
        """Whether a worker of the role takes new work and can hold so many tokens."""
        return any(worker.hello.max_seq_len >= num_tokens for worker in self.taking(role))

    def missing_roles(self) -> tuple[Role, ...]:
        """Roles without a worker that takes work; a colocated worker needs no other."""
        taking = {worker.hello.role for worker in self._workers.values() if not worker.draining}
        needed: tuple[Role, ...] = ("colocated",) if self.of("colocated") else ("prefill", "decode")
        return tuple(role for role in needed if role not in taking)

    def silent(self, now: float, dead_after_s: float) -> list[Worker]:
        return [w for w in self._workers.values() if now - w.heard_at > dead_after_s]

    def excuse(self, absent_s: float) -> None:
        """Take back ``absent_s`` of silence, during which this process did not listen."""
        for worker in self._workers.values():
            worker.heard_at += absent_s

    def require_compatible(self, hello: Hello) -> None:
        """Raise LayoutMismatch unless ``hello`` serves what the workers already here serve, and
        RoleMismatch where some are colocated and others not."""
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
                    f"{_advice(worker.layout, hello.memory.layout)}"
                )
            worker.layout.require_same(hello.memory.layout, peer=hello.instance)


def _advice(here: CacheLayout, there: CacheLayout) -> str:
    """What to do about two models that differ: pages have one layer more with the draft layer."""
    num_more = there.num_attention_layers - here.num_attention_layers
    if abs(num_more) == 1 and here == structs.replace(
        there, num_attention_layers=here.num_attention_layers
    ):
        return (
            "only one of them makes drafts: give all workers the same checkpoint and the same "
            "BATON_SPECULATE"
        )
    return "give all workers the same checkpoint and the same BATON_QUANTIZE"
