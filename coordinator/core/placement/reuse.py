"""Prompt tokens that a worker can reuse, as far as the coordinator knows. Pure.

    kept      the worker keeps a prefix of the prompt
    pulled    a peer keeps a longer prefix, and the worker can pull it
    pending   the worker is computing a prompt that begins alike; the later one waits for its state

This is what the workers reported, and it may have changed: a worker computes what it does not find.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from coordinator.core.request import Request
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.offers import Offer
from transport.wire.prefix import PrefixKeys

LONG_SHARED_LEN = 512
"""A shared beginning is worth a wait from this length on, which takes 7 ms to compute."""
PULL_LEN = 64
COPY_SHARE = 1 / 128
DISPLACED_SHARE = 1 / 16
"""The cost of a pull, in tokens computed meanwhile (60,000 to 90,000 per second at the full size).
A state slot (61 MiB) and the launch take a millisecond. The 20 KiB of a token, at 200 GB/s, take
less than a hundredth of the time to compute it. The copy also evicts other kept prefixes, and some
would have been used again."""

Reuses = Callable[[Worker], "Reuse"]


@dataclass(frozen=True)
class Reuse:
    """The beginning of a prompt that a worker need not compute."""

    num_tokens: int = 0
    cost_len: int = 0
    """To get the beginning takes as long as computing so many tokens."""
    prefix: Offer | None = None
    """A peer's kept prefix, to be pulled unless the worker has as much of its own by then."""

    @property
    def saved_len(self) -> int:
        """Tokens that need not be computed, minus the cost of getting them."""
        return self.num_tokens - self.cost_len


NOTHING = Reuse()


def nothing(worker: Worker) -> Reuse:
    """What a worker reuses if no prefixes are kept."""
    return NOTHING


def reuses_of(request: Request, registry: Registry) -> Reuses:
    """A function that gives what a worker would reuse of the request's tokens."""
    keys = _keys_of(request, registry)
    if keys is None:
        return nothing
    max_tokens = request.num_tokens - 1  # at least one token is computed
    looked_up = cache(lambda: registry.kept.of(keys, max_tokens))
    may_pull = "pull_timeout" not in request.failed_with  # a copy from a peer may be the cause

    def reuse(worker: Worker) -> Reuse:
        found = looked_up()
        own = next((k.num_tokens for at, k in found if at == worker.instance), 0)
        shared = worker.load.pending_prefixes.num_pages(keys, max_tokens // worker.layout.page_size)
        shared *= worker.layout.page_size
        best = Reuse(max(own, shared if shared >= LONG_SHARED_LEN else 0))
        for instance, kept in found:
            if may_pull and kept.offer and registry.may_pull_prefix(worker, instance):
                pulled = Reuse(kept.num_tokens, pull_cost(kept.num_tokens, own), kept.offer)
                if pulled.saved_len > best.saved_len:
                    return pulled
                # The pending prompt may fail, so the offer goes along.
                return replace(best, prefix=kept.offer if pulled.saved_len > own else None)
        return best

    return reuse


def kept_at(request: Request, registry: Registry) -> Reuses:
    """A function that gives what a worker itself keeps of the request's tokens."""
    keys = _keys_of(request, registry)
    if keys is None:
        return nothing

    @cache
    def kept() -> dict[str, int]:
        found = registry.kept.of(keys, request.num_tokens)
        return {instance: prefix.num_tokens for instance, prefix in reversed(found)}

    return lambda worker: Reuse(kept().get(worker.instance, 0))


def _keys_of(request: Request, registry: Registry) -> PrefixKeys | None:
    """Keys of the request's prefixes; None if no worker keeps any, or the request shares none."""
    keeping = next((worker for worker in registry.all() if worker.keeps_prefixes), None)
    if keeping is None or not request.shares_prefixes:
        return None
    return request.prefix_keys(keeping.hello)


def pull_cost(num_tokens: int, own: int) -> int:
    """The cost of pulling a prefix, in tokens, if the worker keeps ``own`` of them already."""
    displaced = max(0, num_tokens - own)
    return PULL_LEN + int(num_tokens * COPY_SHARE + displaced * DISPLACED_SHARE)
