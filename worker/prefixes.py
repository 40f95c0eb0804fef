"""The prefix cache of one worker: what its parts need of the engine, and what it tells.

prefill/reuse.py finds and keeps prefixes of prompts, prefill/pulls.py copies those of peers. Here
are the state and the page that a prompt begins with, the answers that are kept, and the messages.
"""

from collections.abc import Callable, Set
from functools import partial

from engine.cache.allocator import CacheAllocator
from engine.cache.kept import KeptPrefix
from engine.runner import Engine
from engine.sequence import Sequence
from prefill.pulls import PrefixPulls
from prefill.reuse import PrefixReuse
from transport.copy.digest import digest
from transport.copy.pull import CopyStream
from transport.wire.messages import FromWorker
from transport.wire.offers import KeptPrefix as KeptMessage
from transport.wire.offers import Offer, PrefixesChanged
from transport.wire.prefix import PrefixKeys
from transport.wire.reports import PrefixCounts
from worker.settings import HandoffSettings, PrefixCacheSettings


class Prefixes:
    """What a worker keeps for later prompts; nothing where that is off."""

    def __init__(
        self,
        engine: Engine,
        allocator: CacheAllocator,
        puller: CopyStream,
        peers: Set[str],
        instance: str,
        handoff: HandoffSettings,
        clock: Callable[[], float],
        settings: PrefixCacheSettings,
    ) -> None:
        self._engine = engine
        self._allocator = allocator
        self._page_size = engine.layout.page_size
        self._verify = handoff.verify
        self._offer = partial(Offer, instance)
        self._enabled = self._untold = settings.enabled
        self.reuse: PrefixReuse | None = None
        if settings.enabled:
            self.reuse = PrefixReuse(allocator, engine.layout, settings.min_saved_tokens)
        self.pulls = PrefixPulls(puller, peers, handoff.pull_timeout_s, clock)
        self._evicted: set[bytes] = set()
        self._num_evicted = 0
        allocator.on_evict = self._note_evicted

    def name(self, sequence: Sequence) -> None:
        """Give an arriving sequence its keys, unless all of it has to be computed."""
        if self._enabled and sequence.sampling.prompt_logprobs is None:
            sequence.keys = self._keys(sequence)

    def begin(self, sequence: Sequence) -> None:
        """The sequence is bound, and its first chunk about to be launched: put what it reuses into
        its own state slot and page."""
        if not sequence.num_reused:
            return
        allocation, prefix = sequence.allocation, sequence.prefix
        assert allocation is not None, "begun without pages"
        slot = allocation.slot.id
        num_pages, tail = divmod(sequence.num_reused, self._page_size)
        if prefix is None:  # a copy has put it there
            self._engine.restore(slot, slot, sequence.num_reused)
            return
        self._engine.restore(slot, prefix.slot.id, sequence.num_reused)
        if tail:
            self._engine.copy_page(prefix.pages[num_pages], allocation.pages[num_pages])

    def keep_answer(self, sequence: Sequence) -> bool:
        """Take over the cache of a finished sequence, if its state is behind tokens that are
        known and whose pages are all there."""
        num_tokens, allocation = sequence.num_cached - sequence.num_pending, sequence.allocation
        assert allocation is not None, "finished without pages"
        if not self._enabled or num_tokens > sequence.num_tokens:
            return False
        if self._engine.layout.pages_for(num_tokens) > len(allocation.pages):
            return False
        kept = self._allocator.turn_into_prefix(allocation, self._keys(sequence), num_tokens)
        if kept is not None:
            kept.missed_drafts = sequence.missed_drafts
        return True

    def tell(self, send: Callable[[FromWorker], None]) -> None:
        """Say what is kept since the last time; all of it at first and after ``forget_told``, also
        nothing: so the coordinator knows from the start that prefixes are kept here."""
        added = tuple(self._message(kept) for kept in self._allocator.kept.take_new())
        removed, self._evicted = tuple(self._evicted), set()
        if added or removed or self._untold:
            self._untold = False
            send(PrefixesChanged(added, removed))

    def forget_told(self) -> None:
        """Whoever was told is gone."""
        self._untold = self._enabled
        self._allocator.kept.all_new()
        self._evicted.clear()

    def counts(self) -> PrefixCounts:
        return PrefixCounts(
            **(self.reuse.counts if self.reuse is not None else {}),
            evicted=self._num_evicted,
            num_kept=len(self._allocator.kept),
            pages_kept=self._allocator.num_pages_cached,
        )

    def _keys(self, sequence: Sequence) -> PrefixKeys:
        model = self._engine.fingerprint
        return PrefixKeys(model, sequence.salt, sequence.token_ids, self._page_size)

    def _message(self, kept: KeptPrefix) -> KeptMessage:
        pages, slot, num_tokens = kept.pages, kept.slot, kept.num_tokens
        checked = digest(self._engine.cache, pages, slot.id, num_tokens) if self._verify else ""
        offer = self._offer(pages, slot.id, slot.epoch, num_tokens, checked, kept.missed_drafts)
        return KeptMessage(kept.key, kept.pages_key, num_tokens, offer)

    def _note_evicted(self, kept: KeptPrefix) -> None:
        self._evicted.add(kept.key)
        self._num_evicted += 1
