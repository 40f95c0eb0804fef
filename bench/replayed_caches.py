"""Caches that a trace is replayed through: Baton's, without a device, and an LRU without states.

Requests come one after the other: the prompt is computed and the answer written before the next
request comes. A cache tells how many tokens of the prompt it had.
"""

from dataclasses import dataclass
from typing import Protocol

from bench.kept_blocks import KeptBlocks
from engine.cache.allocator import CacheAllocation, CacheAllocator
from engine.cache.host_tier import HostTier
from engine.sequence import WHOLE, Beginning, Sequence
from prefill.reuse import PrefixReuse
from transport.copy.host_copy import HostCopy
from transport.copy.pull import CLOSE_S, Copied
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.prefix import PrefixKeys
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import TokenIds

CHUNK_TOKENS = 8192


@dataclass(frozen=True)
class Request:
    """One request. ``ids``: the prompt's tokens. ``prompt``: keys of the prompt's pages, ``whole``:
    of prompt and answer, ``blocks``: of both in blocks of the LRU."""

    ids: TokenIds
    prompt: PrefixKeys
    whole: PrefixKeys
    blocks: PrefixKeys


class Cache(Protocol):
    def serve(self, request: Request) -> int:
        """Serve a request and keep its prefixes; returns how many prompt tokens were cached."""
        ...


class BlockLru:
    """An LRU of blocks of tokens that need no states. ``answers``: blocks of answers are kept
    too."""

    def __init__(self, num_blocks: int, block_len: int, *, answers: bool) -> None:
        self._kept = KeptBlocks(num_blocks)
        self._block_len = block_len
        self._answers = answers

    def serve(self, request: Request) -> int:
        hits = self._kept.num_hits(self._blocks(request.blocks, len(request.ids)))
        num_tokens = request.whole.num_tokens if self._answers else len(request.ids)
        self._kept.keep(self._blocks(request.blocks, num_tokens))
        return min(hits * self._block_len, len(request.ids) - 1)

    def _blocks(self, keys: PrefixKeys, num_tokens: int) -> list[bytes]:
        """Keys of the blocks; the last block may not be full."""
        ends = range(self._block_len, num_tokens + self._block_len, self._block_len)
        return [keys.prefix(min(end, num_tokens)) for end in ends]


class Prefixes:
    """A worker's prefix cache: its index, its policy, its allocator, and ``host_bytes`` of host
    memory."""

    def __init__(
        self, layout: CacheLayout, pools: PoolSize, host_bytes: int, min_saved_tokens: int
    ) -> None:
        self._layout = layout
        self._min_saved = min_saved_tokens
        self._allocator = CacheAllocator(
            pools, page_size=layout.page_size, has_states=layout.has_states
        )
        self._host = HostTier(layout, _NoCopier(layout, host_bytes), self._allocator)
        self._reuse = PrefixReuse(self._allocator, layout, min_saved_tokens, self._host)
        self._allocator.prefixes.on_keep = self._host.returned

    def serve(self, request: Request) -> int:
        ids, num_tokens = request.ids, request.whole.num_tokens
        sampling, stop = SamplingParams(), StopRule(num_tokens - len(ids))
        sequence = Sequence("", 1, 1, ids, len(ids), sampling, stop, keys=request.prompt)
        sequence.allocation = self._admit(sequence, request)
        while sequence.num_cached < sequence.num_tokens:
            left = sequence.num_tokens - sequence.num_cached
            length, keep = self._reuse.chunk(sequence, min(left, CHUNK_TOKENS))
            sequence.num_cached += length
            self._reuse.retired(sequence, keep)
            self._host.poll()
        self._reuse.ended(sequence)
        # The last token of an answer is never computed.
        self._allocator.turn_into_prefix(sequence.allocation, request.whole, num_tokens - 1)
        self._host.poll()
        return sequence.beginning.num_tokens

    def check(self) -> str:
        """ "" if all memory is accounted for, else what is wrong."""
        return self._allocator.check() or self._host.check()

    def _admit(self, sequence: Sequence, request: Request) -> CacheAllocation:
        self._host.poll()
        num_pages = self._layout.pages_for(request.whole.num_tokens)
        prefix = self._reuse.find(sequence)
        begun = WHOLE if prefix is None else Beginning(prefix.num_tokens, "gpu", prefix)
        allocation = self._allocator.reserve(num_pages, prefix)
        there = self._host.longest(request.prompt, sequence.num_tokens - 1)
        if there is not None and there.num_tokens >= begun.num_tokens + self._min_saved:
            self._host.fetch(there, tuple(allocation.pages), allocation.slot.id)
            self._host.poll()
            num = there.num_tokens
            prefix = self._allocator.prefixes.begin(
                allocation.pages, request.prompt, num, there.kind
            )
            if prefix is not None and not self._allocator.prefixes.finish(prefix):
                prefix = None
            begun = Beginning(num, "host", prefix)
        self._reuse.admitted(sequence, begun)
        return allocation


class _Done:
    """A copy that is done at once."""

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True

    def result(self) -> Copied:
        return Copied(0, 0.0)


class _NoCopier:
    """Host memory that has a size and no bytes: nothing is copied."""

    def __init__(self, layout: CacheLayout, size_bytes: int) -> None:
        self.block_bytes = layout.page_bytes
        self.num_blocks = size_bytes // layout.page_bytes
        self.blocks_per_state = -(-layout.state_slot_bytes // layout.page_bytes) + 1

    def save(self, copy: HostCopy) -> _Done:
        return _Done()

    def fetch(self, copy: HostCopy) -> _Done:
        return _Done()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        return True
