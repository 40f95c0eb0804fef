"""``python -m bench.prefix_placement TRACE...``: what placement makes of traces' common beginnings.

    python -m bench.prefix_placement mooncake_synthetic.jsonl
    python -m bench.prefix_placement mooncake_conversation.jsonl --requests 4000 --speed 8

The coordinator's own lifecycle, queue, index and placement, over prefill workers that only count:
each computes one prompt after another at ``--rate`` tokens/s, and keeps a state at a prompt's last
whole block of the trace and where the coordinator says, the least recently used evicted first, in
its part of ``--memory-gb``. Each trace is replayed with these workers, with a coordinator that is
told nothing of what they keep (``blind``), and with one worker of all the memory. The result file
has the share of prompt tokens that were reused, pulls from peers, and TTFT in seconds. Nothing here
is timed: the figures are the same on every machine.
"""

import heapq
import itertools
import sys
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import result_file
from bench.environment import describe
from bench.harness.workload.plan import Planned
from bench.harness.workload.traces import read_trace
from coordinator.core.contract import SequenceRequest
from coordinator.core.effects import Effect, Send
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import PlacementLimits
from coordinator.core.workers.registry import Registry
from transport.wire.layout import PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Hello, PeerJoined, PeerTested, Prefill, Prefilled, TokenOut
from transport.wire.offers import KeptPrefix, Offer, PrefixesChanged
from transport.wire.prefix import KnownPrefixes, PrefixKeys
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import TokenIds, from_wire, packed
from worker.pairtest import FULL_SIZE

PAGE_SIZE = FULL_SIZE.page_size
PULL_BYTES_PER_S = 200e9
PULL_S = 0.001
"""Beside the bytes: launch, and until the worker's loop sees the end."""


@dataclass(eq=False)
class Worker:
    """``free_at``: it has computed all that it was given. Kept prefixes are in order of use."""

    instance: str
    memory_bytes: float
    free_at: float = 0.0
    kept: OrderedDict[bytes, KeptPrefix] = field(default_factory=OrderedDict)
    known: KnownPrefixes = field(default_factory=lambda: KnownPrefixes(PAGE_SIZE))
    pages: Counter[bytes] = field(default_factory=Counter)
    pages_of: dict[bytes, list[bytes]] = field(default_factory=dict)

    def longest(self, keys: PrefixKeys) -> int:
        found = self.known.longest(keys, keys.num_tokens - 1)
        if found is None:
            return 0
        self.kept.move_to_end(found[0])
        return found[1]

    def keep(self, keys: PrefixKeys, num_tokens: int) -> PrefixesChanged:
        """Of whole pages."""
        key = keys.prefix(num_tokens)
        if not num_tokens or key in self.kept:
            return PrefixesChanged()
        self.kept[key] = KeptPrefix(
            key, key, num_tokens, Offer(self.instance, (), 0, 1, num_tokens)
        )
        self.known.add(key, key, num_tokens)
        self.pages_of[key] = keys.pages_up_to(num_tokens // PAGE_SIZE)[1:]
        self.pages.update(self.pages_of[key])
        added, removed = self.kept[key], []
        while self._num_bytes() > self.memory_bytes and len(self.kept) > 1:
            removed.append(self._evict())
        return PrefixesChanged((added,), tuple(removed))

    def _evict(self) -> bytes:
        key, kept = self.kept.popitem(last=False)
        self.known.remove(key, kept.pages_key)
        for page in self.pages_of.pop(key):
            self.pages[page] -= 1
            if not self.pages[page]:
                del self.pages[page]
        return key

    def _num_bytes(self) -> int:
        num_states = len(self.kept)
        return len(self.pages) * FULL_SIZE.page_bytes + num_states * FULL_SIZE.state_slot_bytes


class Replay:
    """A trace's requests, each ended by its first token."""

    def __init__(
        self, num_workers: int, memory_bytes: float, tokens_per_s: float, *, blind: bool
    ) -> None:
        self.ttft_s: list[float] = []
        self.num_tokens = self.num_reused = self.num_pulls = 0
        self._now = 0.0
        self._rate = tokens_per_s
        self._blind = blind
        self._block_lens: dict[str, int] = {}
        self._came_at: dict[str, float] = {}
        self._order = itertools.count()
        self._events: list[tuple[float, int, Worker, Prefill, int]] = []  # starts, and ends
        registry = Registry()
        self._lifecycle = Lifecycle(
            registry, PlacementLimits(), self._carry_out, self._clock, monotonic=self._clock
        )
        each_bytes = memory_bytes / num_workers
        size = PoolSize(int(each_bytes / FULL_SIZE.page_bytes), 1 << 16)
        self._workers: dict[str, Worker] = {}
        for number in range(num_workers):
            instance = f"prefill-{number}"
            self._workers[instance] = Worker(instance, each_bytes)
            memory = MemoryExport("shm", instance, 1, FULL_SIZE, size)
            longest = size.num_pages * PAGE_SIZE
            hello = Hello(instance, "prefill", "", "cpu", 1, longest, 1 << 16, memory)
            registry.add(hello, 0.0)
            self._lifecycle.worker_joined(instance)
            self._tell(instance, PrefixesChanged())

    def run(self, plan: Sequence[Planned], speed: float) -> None:
        """All requests, ``speed`` times as fast as they came."""
        for number, planned in enumerate(plan):
            self._run_until(planned.at_s / speed)
            self._now = planned.at_s / speed
            name = str(number)
            self._came_at[name], self._block_lens[name] = self._now, planned.block_len
            spec = SequenceRequest(name, _ids(planned), SamplingParams(), StopRule(2))
            self._lifecycle.submit(spec, self._now)
        self._run_until(float("inf"))

    def _run_until(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self._now, _, worker, order, num_reused = heapq.heappop(self._events)
            if num_reused < 0:
                self._start(worker, order)
            else:
                self._end(worker, order, num_reused)

    def _clock(self) -> float:
        return self._now

    def _carry_out(self, effect: Effect) -> None:
        if not isinstance(effect, Send):
            return
        worker, message = self._workers[effect.instance], effect.message
        if isinstance(message, PeerJoined):
            self._lifecycle.peer_tested(worker.instance, PeerTested(message.instance, 1, 1.0))
        elif isinstance(message, Prefill):
            start_at = max(self._now, worker.free_at)
            worker.free_at = start_at + 1e-9  # until it is known how long it takes
            self._push(start_at, worker, message, -1)

    def _start(self, worker: Worker, order: Prefill) -> None:
        if self._now < worker.free_at - 1e-6:  # what came before takes longer
            self._push(worker.free_at, worker, order, -1)
            return
        keys = _keys(order)
        num_reused, offer, seconds = worker.longest(keys), order.prefix, 0.0
        if offer is not None and offer.num_tokens > num_reused:
            peer, key = self._workers[offer.instance], keys.prefix(offer.num_tokens)
            if key in peer.kept:
                peer.kept.move_to_end(key)
                num_bytes = num_reused = offer.num_tokens
                num_bytes *= FULL_SIZE.page_bytes // PAGE_SIZE
                seconds = PULL_S + (num_bytes + FULL_SIZE.state_slot_bytes) / PULL_BYTES_PER_S
                self.num_pulls += 1
        worker.free_at = self._now + seconds + (keys.num_tokens - num_reused) / self._rate
        self._push(worker.free_at, worker, order, num_reused)

    def _end(self, worker: Worker, order: Prefill, num_reused: int) -> None:
        keys, name = _keys(order), order.request_id
        self.ttft_s.append(self._now - self._came_at[name])
        self.num_tokens += keys.num_tokens
        self.num_reused += num_reused
        block_len = self._block_lens[name]
        last = (keys.num_tokens - 1) // block_len * block_len
        for place in sorted({last, *order.boundaries}):
            if num_reused < place < keys.num_tokens:
                self._tell(worker.instance, worker.keep(keys, place // PAGE_SIZE * PAGE_SIZE))
        token = TokenOut(name, order.attempt, 0, 0, finish="length")
        message = Prefilled(token, None, 0.0, 0.0, num_reused)
        self._lifecycle.prefilled(worker.instance, message)

    def _tell(self, instance: str, message: PrefixesChanged) -> None:
        if not self._blind:
            self._lifecycle.prefixes_changed(instance, message)

    def _push(self, at: float, worker: Worker, order: Prefill, num_reused: int) -> None:
        heapq.heappush(self._events, (at, next(self._order), worker, order, num_reused))


def _keys(order: Prefill) -> PrefixKeys:
    return PrefixKeys("", order.salt, from_wire(order.token_ids), PAGE_SIZE)


def _ids(planned: Planned) -> TokenIds:
    blocks = np.repeat(np.array(planned.blocks, np.int32), planned.block_len)
    return packed(blocks[: planned.input_len].tolist())


def main(
    traces: Annotated[list[Path], typer.Argument(help="With hashed blocks: Mooncake's.")],
    requests: Annotated[int, typer.Option(help="Of their first ones; 0: all.")] = 0,
    workers: Annotated[int, typer.Option(help="Prefill workers.")] = 4,
    memory_gb: Annotated[float, typer.Option(help="For KV and states, of all together.")] = 160.0,
    rate: Annotated[float, typer.Option(help="Tokens/s that a worker computes.")] = 75_000.0,
    speed: Annotated[float, typer.Option(help="Times as fast as the trace.")] = 1.0,
    out: Annotated[Path, typer.Option(help="The result file.")] = Path("prefix-placement.json"),
) -> None:
    """Replay the traces, and write what was reused."""
    results: dict[str, Any] = {}
    for trace in traces:
        plan = read_trace(trace)[: requests or None]
        if not all(planned.blocks for planned in plan):
            raise typer.BadParameter(f"{trace} has no hashed blocks")
        results[trace.name] = found = {}
        for name, num, blind in (
            ("seeing", workers, False),
            ("blind", workers, True),
            ("one_worker", 1, False),
        ):
            replay = Replay(num, memory_gb * 1e9, rate, blind=blind)
            replay.run(plan, speed)
            found[name] = _result(replay)
            print(trace.name, name, found[name], flush=True)
    settings = {
        "requests": requests,
        "workers": workers,
        "memory_gb": memory_gb,
        "rate": rate,
        "speed": speed,
    }
    document = result_file.document(
        "prefix-placement",
        environment=describe(sys.argv[1:], "bench.prefix_placement"),
        server={},
        settings=settings,
        results=results,
    )
    result_file.write(out, document)


def _result(replay: Replay) -> dict[str, Any]:
    p50, p90, p99 = np.percentile(replay.ttft_s, (50, 90, 99)).tolist()
    return {
        "requests": len(replay.ttft_s),
        "reused": replay.num_reused / replay.num_tokens,
        "pulls": replay.num_pulls,
        "ttft_s": {"p50": p50, "p90": p90, "p99": p99},
    }


if __name__ == "__main__":
    typer.run(main)
