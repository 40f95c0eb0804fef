"""How many requests a second a set-up serves within targets, by replays of a trace. Pure."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from bench.harness.workload.plan import Planned
from bench.measures import percentile
from bench.predict.changing import Changing, simulation
from bench.predict.node import Node, Request
from bench.setups import Setup

PRECISION = 0.02
"""The goodput is found to this share of itself."""
MOST_DOUBLINGS = 12
"""The rates that are tried: from the trace's own / 2 ** 12 to its own * 2 ** 12."""


@dataclass(frozen=True)
class Targets:
    """What a request must keep to count as good, and the share of requests that must."""

    ttft_s: float
    tpot_s: float
    share: float = 0.9

    def __post_init__(self) -> None:
        for setting, value in (("ttft-ms", self.ttft_s), ("tpot-ms", self.tpot_s)):
            if not 0 < value < 1e6:
                raise ValueError(f"--target-{setting}: {1e3 * value:g} is no time")
        if not 0 < self.share <= 1:
            raise ValueError(f"--share: {self.share} is not above 0 and at most 1")

    def num_good(self, requests: Sequence[Request]) -> int:
        """Number of the requests that keep both times."""
        return sum(r.ttft_s <= self.ttft_s and r.tpot_s <= self.tpot_s for r in requests)

    def met(self, requests: Sequence[Request]) -> bool:
        return self.num_good(requests) >= self.share * len(requests)


@dataclass(frozen=True)
class Goodput:
    """The highest rate at which a set-up keeps the targets; all 0 if it never does. The times are
    those at that rate, in seconds."""

    requests_per_s: float
    output_tok_s: float = 0.0
    ttft_p50_s: float = 0.0
    ttft_p90_s: float = 0.0
    tpot_p50_s: float = 0.0
    tpot_p90_s: float = 0.0


def cached_lens(plan: Sequence[Planned], capacity: int) -> list[int]:
    """Prompt tokens of each request that earlier requests left in a cache of ``capacity`` tokens,
    by the ids of blocks; the block that is used least recently goes first. The last token of a
    prompt is always computed.

    >>> cached_lens([Planned(0, 8, 1, (1, 2), 4), Planned(1, 12, 1, (1, 2, 3), 4)], 100)
    [0, 8]
    """
    block_len = max((each.block_len for each in plan), default=0)
    kept = KeptBlocks(capacity // max(1, block_len))
    found = []
    for each in plan:
        found.append(min(kept.num_hits(each.blocks) * block_len, each.input_len - 1))
        kept.keep(each.blocks)
    return found


class Trace:
    """A plan that is replayed at any rate of requests."""

    def __init__(self, plan: Sequence[Planned], cached: Sequence[int]) -> None:
        if len(plan) < 2 or plan[-1].at_s <= plan[0].at_s:
            raise ValueError("--trace: a rate takes two requests at different times")
        self._plan = list(zip(plan, cached, strict=True))
        self.requests_per_s = (len(plan) - 1) / (plan[-1].at_s - plan[0].at_s)

    def at(self, node: Node, setup: Setup | Changing, requests_per_s: float) -> list[Request]:
        """The requests, replayed in the mean ``requests_per_s``."""
        stretch = self.requests_per_s / requests_per_s
        due = [
            (stretch * each.at_s, Request(each.input_len, each.output_len, cached_len))
            for each, cached_len in self._plan
        ]
        simulation(node, setup).replay(due)
        return [request for _, request in due]

    def goodput(self, node: Node, setup: Setup | Changing, targets: Targets) -> Goodput:
        """The highest rate at which the set-up keeps ``targets``, by bisection."""

        def kept(rate: float) -> bool:
            return targets.met(self.at(node, setup, rate))

        rate = self.requests_per_s
        factor = 2.0 if kept(rate) else 0.5
        for _ in range(MOST_DOUBLINGS):
            rate *= factor
            if kept(rate) == (factor < 1):
                break
        else:
            return Goodput(0.0) if factor < 1 else self._figures(node, setup, rate)
        low, high = (rate, 2 * rate) if factor < 1 else (rate / 2, rate)
        while high > (1 + PRECISION) * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if kept(middle) else (low, middle)
        return self._figures(node, setup, low)

    def _figures(self, node: Node, setup: Setup | Changing, rate: float) -> Goodput:
        requests = self.at(node, setup, rate)
        num_tokens = sum(each.output_len for each in requests)
        ttfts, tpots = [r.ttft_s for r in requests], [r.tpot_s for r in requests]
        shares = [percentile(of, share) for of in (ttfts, tpots) for share in (0.5, 0.9)]
        return Goodput(rate, num_tokens * rate / len(requests), *shares)


class KeptBlocks:
    """An LRU of blocks of prompts: the ``num_blocks`` blocks that were used last, by their keys."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._kept: OrderedDict[Hashable, None] = OrderedDict()

    def num_hits(self, keys: Sequence[Hashable]) -> int:
        """Number of the first ``keys`` in a row whose blocks are kept."""
        return next((n for n, key in enumerate(keys) if key not in self._kept), len(keys))

    def keep(self, keys: Sequence[Hashable]) -> None:
        """Keep the blocks of a prompt; of these the first ones go last."""
        for key in reversed(keys):
            self._kept[key] = None
            self._kept.move_to_end(key)
        while len(self._kept) > self._num_blocks:
            self._kept.popitem(last=False)
