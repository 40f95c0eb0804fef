"""The prefix cache of one worker: connects its parts to the engine and to the coordinator.

prefill/reuse.py finds and keeps prefixes of prompts. prefill/pulls.py copies prefixes from peers
and from host memory, where engine/cache/host_tier.py saves them. This file copies the state and the
page that a prompt begins with, keeps the prefixes of answers, and sends the messages.
"""

import logging
from collections.abc import Callable, Set
from functools import partial

from engine.cache.allocator import CacheAllocator
from engine.cache.host_tier import HostTier
from engine.cache.kept import KeptPrefix
from engine.runner import Engine
from engine.sequence import Sequence
from prefill.pulls import PrefixCopy, PrefixPulls
from prefill.reuse import PrefixReuse
from transport.copy.digest import digest
from transport.copy.host_copy import HostCopier
from transport.copy.pull import CopyStream
from transport.copy.queue import CopyQueue
from transport.wire.messages import FromWorker
from transport.wire.offers import KeptPrefix as KeptMessage
from transport.wire.offers import Offer, PrefixesChanged
from transport.wire.prefix import PrefixKeys
from transport.wire.reports import PrefixCounts
from worker.settings import ServingSettings

log = logging.getLogger(__name__)


class Prefixes:
    """The prefixes that a worker keeps for later prompts; none if the prefix cache is off."""

    def __init__(
        self,
        engine: Engine,
        allocator: CacheAllocator,
        settings: ServingSettings,
        puller: CopyStream,
        peers: Set[str],
        host: HostCopier,
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._allocator = allocator
        self._page_size = engine.layout.page_size
        self._verify = settings.handoff.verify
        self._offer = partial(Offer, settings.instance)
        self._enabled = self._unpublished = settings.prefix_cache.enabled
        self.host = HostTier(engine.layout, host, allocator)
        self.reuse: PrefixReuse | None = None
        min_saved = settings.prefix_cache.min_saved_tokens
        if self._enabled:
            self.reuse = PrefixReuse(allocator, engine.layout, min_saved, self.host)
        copies = CopyQueue[PrefixCopy](engine.cache, settings.handoff.pull_timeout_s, clock)
        self.pulls = PrefixPulls(
            allocator, puller, peers, self.host, copies, min_saved_tokens=min_saved
        )
        self._moved: set[bytes] = set()
        self._num_evicted = 0
        allocator.prefixes.on_keep = self.host.returned
        allocator.prefixes.on_evict = self._note_evicted
        self.host.on_evict = self._note_evicted_from_host

    def give_keys(self, sequence: Sequence) -> None:
        """Give an arriving sequence its keys, unless all of it has to be computed."""
        if self._enabled and sequence.sampling.prompt_logprobs is None:
            sequence.keys = self._keys(sequence)

    def copy_beginning(self, sequence: Sequence) -> None:
        """Copy the reused state and the last, partly filled page into the sequence's own state slot
        and page. Called when the sequence is bound and its first chunk is about to be launched."""
        num_reused, prefix = sequence.beginning.num_tokens, sequence.beginning.prefix
        if not num_reused:
            return
        allocation = sequence.allocation
        assert allocation is not None, "bound without pages"
        slot = allocation.slot.id
        num_pages, tail = divmod(num_reused, self._page_size)
        if prefix is None:  # a copy has put them there already
            self._engine.restore(slot, slot, num_reused)
            return
        self._engine.restore(slot, prefix.slot.id, num_reused)
        if tail and prefix.pages[num_pages] != allocation.pages[num_pages]:
            self._engine.copy_page(prefix.pages[num_pages], allocation.pages[num_pages])

    def keep_answer(self, sequence: Sequence) -> bool:
        """Keep the cache of a finished sequence as a prefix, if the tokens before its state are
        known. With drafts a step may be launched past the pages of a sequence that has ended: it
        writes over the last token, so nothing is kept. Returns True if it was kept."""
        num_tokens, allocation = sequence.num_cached - sequence.num_pending, sequence.allocation
        assert allocation is not None, "finished without pages"
        if not self._enabled or num_tokens > sequence.num_tokens:
            return False
        if self._engine.layout.pages_for(sequence.num_cached) > len(allocation.pages):
            return False
        known = sequence.keys  # the keys of its prompt
        keys = known.followed(sequence.token_ids) if known is not None else self._keys(sequence)
        self._allocator.turn_into_prefix(allocation, keys, num_tokens)
        return True

    def publish(self, send: Callable[[FromWorker], None]) -> None:
        """Send the coordinator the prefixes kept or evicted since the last call. The first message,
        and the first after ``forget_published``, lists all of them, and is sent even if there are
        none: so the coordinator knows from the start that this worker keeps prefixes."""
        moved, self._moved = self._moved, set()
        added = [self._message(kept) for kept in self._allocator.kept.take_new()]
        added += [
            KeptMessage(kept.key, kept.pages_key, kept.num_tokens, None, self._page_keys(kept))
            for kept in map(self.host.get, moved)
            if kept is not None and kept.key not in self._allocator.kept
        ]
        if added or moved or self._unpublished:
            self._unpublished = False
            send(PrefixesChanged(tuple(added), tuple(moved)))

    def forget_published(self) -> None:
        """Publish all prefixes again next time: the coordinator that knew them is gone."""
        self._unpublished = self._enabled
        self._allocator.kept.all_new()
        self._moved = {kept.key for kept in self.host if kept.key not in self._allocator.kept}

    def counts(self) -> PrefixCounts:
        return PrefixCounts(
            **(self.reuse.counts if self.reuse is not None else {}),
            evicted=self._num_evicted,
            num_kept=len(self._allocator.kept),
            pages_kept=self._allocator.num_pages_cached,
            evicted_host=self.host.num_evicted,
            num_kept_host=self.host.num_kept,
            host_bytes=self.host.used_bytes,
            host_size_bytes=self.host.size_bytes,
        )

    def close(self) -> None:
        """Wait for the copies of host memory, so that none writes the cache any more."""
        if not self.host.close():
            log.error("a copy to or from host memory has not ended: this process may hang")

    def _keys(self, sequence: Sequence) -> PrefixKeys:
        model = self._engine.fingerprint
        return PrefixKeys(model, sequence.salt, sequence.token_ids, self._page_size)

    def _message(self, kept: KeptPrefix) -> KeptMessage:
        pages, slot, num_tokens = kept.pages, kept.slot, kept.num_tokens
        checked = digest(self._engine.cache, pages, slot.id, num_tokens) if self._verify else ""
        offer = self._offer(pages, slot.id, slot.epoch, num_tokens, checked)
        return KeptMessage(kept.key, kept.pages_key, num_tokens, offer, self._page_keys(kept))

    def _page_keys(self, kept: KeptPrefix) -> tuple[bytes, ...]:
        """The keys by which the coordinator finds parts of a prefix, if pages alone are one."""
        return () if self._engine.layout.has_states else kept.page_keys[1:]

    def _note_evicted(self, kept: KeptPrefix) -> None:
        self._moved.add(kept.key)
        self._num_evicted += 1

    def _note_evicted_from_host(self, kept: KeptPrefix) -> None:
        if kept.key not in self._allocator.kept:
            self._moved.add(kept.key)
