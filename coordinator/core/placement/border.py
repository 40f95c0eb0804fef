"""What crosses the border between the pools: prompts that a decode worker computes, and sequences
that a prefill worker decodes. Pure. With soft pools soft_pools.py decides, by the figures that are
collected here; else nothing crosses.
"""

import math
from collections.abc import Callable

from coordinator.core.placement.choice import Candidates, Place, choose_generate, without
from coordinator.core.placement.reuse import reuses_of
from coordinator.core.request import Request, State
from coordinator.core.settings import PlacementLimits
from coordinator.core.soft_pools import Site, SoftPools
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker, are_pair


class Border:
    """The border that nothing crosses. ``num_tokens_queued``: tokens of the requests that wait for
    a worker to compute them."""

    @property
    def gather_s(self) -> float:
        """Seconds that a prompt waits for others at most."""
        return math.inf

    def note_prompt(self, worker: Worker, num_computed: int) -> None:
        """Count the tokens of a prompt that the worker was given to compute."""

    def roles_changed(self) -> None:
        """Forget the prompts that workers were given."""

    def gathers(self, worker: Worker, request: Request, num_tokens_queued: int) -> bool:
        """True if a queued request waits for others before this worker computes it."""
        return False

    def sharing(self, worker: Worker) -> list[Worker]:
        """The workers that compute gathered prompts at the same time as this one, itself too."""
        return [worker]

    def helper(
        self,
        request: Request,
        computing: list[Worker],
        reserved: set[str],
        num_tokens_queued: int,
    ) -> Place | None:
        """The place of a prompt beside a decode worker's steps, if it is better off there than at
        one of the prefill workers that are ``computing`` prompts."""
        return None

    def keeper(self, request: Request, other: Worker | None) -> Worker | None:
        """The prefill worker of an offered request, if it is to decode it itself rather than the
        ``other`` worker; None is one without room."""
        return None

    def taker(self, request: Request, num_moving: int) -> Worker | None:
        """The prefill worker without prompts that is to decode a request of a decode worker.
        ``num_moving``: requests that are about to move there before it."""
        return None

    def releases(self, worker: Worker, num_tokens_queued: int) -> bool:
        """True if the next sequence that a prefill worker decodes is to be decoded elsewhere."""
        return True


class SoftBorder(Border):
    """The border of soft pools: asks ``soft`` about each prompt and each sequence."""

    def __init__(
        self,
        soft: SoftPools,
        registry: Registry,
        candidates: Candidates,
        limits: PlacementLimits,
        monotonic: Callable[[], float],
    ) -> None:
        self._soft = soft
        self._registry = registry
        self._candidates = candidates
        self._limits = limits
        self._monotonic = monotonic

    @property
    def gather_s(self) -> float:
        return self._soft.gather_s

    def note_prompt(self, worker: Worker, num_computed: int) -> None:
        self._soft.note_prompt(worker.instance, num_computed, self._monotonic())

    def roles_changed(self) -> None:
        self._soft.roles_changed()

    def gathers(self, worker: Worker, request: Request, num_tokens_queued: int) -> bool:
        sharing = self.sharing(worker)
        together = len(sharing) > 1
        if request.attempt > 1 or (self._registry.decode_computes_prompts() and not together):
            return False
        now = self._monotonic()
        num_new = self._soft.new_tokens(request.num_tokens)
        num_queued = self._soft.new_tokens(num_tokens_queued) // len(sharing)
        num_sequences = max(each.num_decoded for each in sharing)
        there = Site(worker.instance, num_sequences, worker.load.tokens_ahead)
        waited_s = now - request.progress_at
        return self._soft.gathers(there, num_new, num_queued, waited_s, now)

    def sharing(self, worker: Worker) -> list[Worker]:
        present = self._registry.all()
        return present if are_pair(present) else [worker]

    def helper(
        self,
        request: Request,
        computing: list[Worker],
        reserved: set[str],
        num_tokens_queued: int,
    ) -> Place | None:
        if not computing or computing[0].role != "prefill":
            return None
        ahead = min(worker.load.tokens_ahead for worker in computing)
        num_waiting = ahead + self._soft.new_tokens(num_tokens_queued) // len(computing)
        helpers = without(self._candidates.to_help(request), reserved)
        fewest = min((worker.load.num_sequences for worker in helpers), default=0)
        if not self._soft.may_help(num_waiting, fewest):  # before prompts are looked up
            return None
        reuses = reuses_of(request, self._registry)
        place = choose_generate(helpers, request, self._limits, reuses)
        if place is None:
            return None
        load, num_new = place.worker.load, request.num_tokens - place.reuse.num_tokens
        there = Site(place.worker.instance, load.num_sequences, load.tokens_ahead)
        asked_s, now = request.spec.ttft_s, self._monotonic()
        return place if self._soft.helps(num_waiting, there, num_new, now, asked_s) else None

    def keeper(self, request: Request, other: Worker | None) -> Worker | None:
        own = self._registry.get(request.prefill_worker)
        if request.moving or own is None or not _may_keep(own):
            return None
        if other is None:
            return own
        here = Site(own.instance, own.num_decoded, own.load.tokens_ahead)
        there = _decoding(other, other.load.num_sequences)
        return own if self._soft.keeps(here, there, self._monotonic()) else None

    def taker(self, request: Request, num_moving: int) -> Worker | None:
        offered = request.state is State.HANDOFF
        source = self._registry.get(request.prefill_worker if offered else request.decode_worker)
        if source is None or source.role != "decode":
            return None
        able = self._candidates.to_take(request, source.instance)
        worker = min(able, key=lambda w: w.num_decoded, default=None)
        if worker is None or not worker.load.has_room(request.num_tokens + 1, growing=True):
            return None
        here = Site(worker.instance, worker.num_decoded + num_moving, worker.load.tokens_ahead)
        there = _decoding(source, source.num_decoded + offered - num_moving)
        idle_s = self._monotonic() - worker.prompts.ended_at
        return worker if self._soft.takes(here, there, idle_s) else None

    def releases(self, worker: Worker, num_tokens_queued: int) -> bool:
        others = self._registry.taking("decode")
        if not others:
            return False
        other = min(others, key=lambda w: w.load.num_sequences)
        ahead = worker.load.tokens_ahead + self._soft.new_tokens(num_tokens_queued)
        here = Site(worker.instance, worker.num_decoded, ahead)
        there = _decoding(other, other.load.num_sequences)
        return self._soft.releases(here, there, self._monotonic())


def _decoding(worker: Worker, num_sequences: int) -> Site:
    spread = worker.spread
    return Site(
        worker.instance,
        num_sequences,
        has_lenders=spread.has_lenders,
        in_pair=spread.spreads_in_pair,
    )


def _may_keep(worker: Worker) -> bool:
    able = worker.can_be("decode") and worker.breaker.closed and not worker.draining
    page = worker.layout.page_size
    return able and worker.reserved_for is None and worker.load.has_room(page, growing=True)
