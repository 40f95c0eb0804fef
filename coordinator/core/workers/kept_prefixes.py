"""Prefixes of earlier requests that the workers keep, as they reported, and prefixes that they are
computing. Pure."""

from collections import Counter

from transport.wire.offers import KeptPrefix, PrefixesChanged
from transport.wire.page_index import PageIndex
from transport.wire.prefix import KnownPrefixes, PrefixKeys

MAX_PENDING_PAGES = 256
"""Most pages noted of a prompt that is being computed: 16,384 tokens are worth a wait."""


class KeptPrefixes:
    """The kept prefixes of all workers: a prompt is looked up once for all of them. ``page_size``
    is in tokens. Of a model without states any whole pages of a prefix are a prefix, too."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known = KnownPrefixes(page_size)
        self._kept: dict[bytes, dict[str, KeptPrefix]] = {}  # by key, then by worker
        self._keys: dict[str, set[bytes]] = {}  # by worker
        self._pages: dict[str, PageIndex[bytes]] = {}  # of models without states, by worker
        self._longest = 0  # tokens of the longest prefix that was ever kept
        self._last: tuple[PrefixKeys, int, list[tuple[str, KeptPrefix]]] | None = None

    def __len__(self) -> int:
        """Number of kept prefixes, counted at each worker that keeps them."""
        return sum(len(keys) for keys in self._keys.values())

    def change(self, instance: str, message: PrefixesChanged) -> None:
        """Store what a worker has added and removed."""
        for key in message.removed:
            self._remove(instance, key)
        for kept in message.added:
            self._remove(instance, kept.key)
            self._add(instance, kept)

    def forget(self, instance: str) -> None:
        """Remove the prefixes of a worker that is gone."""
        for key in list(self._keys.get(instance, ())):
            self._remove(instance, key)

    def of(self, keys: PrefixKeys, max_tokens: int) -> list[tuple[str, KeptPrefix]]:
        """The kept prefixes of at most ``max_tokens`` tokens that a prompt begins with, longest
        first, each with its worker. The oldest waiting request is looked up at every event, so the
        last answer is remembered while it is valid."""
        if self._last is not None and self._last[0] is keys and self._last[1] == max_tokens:
            return self._last[2]
        found: list[tuple[str, KeptPrefix]] = []
        limit = min(max_tokens, self._longest)
        while (longest := self._known.longest(keys, limit)) is not None:
            key, num_tokens = longest
            entries = self._kept[key].items()
            found += [each for each in entries if each[1].num_tokens == num_tokens]
            limit = num_tokens - 1
        found = self._with_parts(found, keys, max_tokens)
        self._last = keys, max_tokens, found
        return found

    def _with_parts(
        self, found: list[tuple[str, KeptPrefix]], keys: PrefixKeys, max_tokens: int
    ) -> list[tuple[str, KeptPrefix]]:
        """Add for each worker the first pages of a prefix, where they are longer than all that was
        found of this worker."""
        parts: list[tuple[str, KeptPrefix]] = []
        for instance, index in self._pages.items():
            most = index.longest(keys, max_tokens)
            own = next((kept.num_tokens for at, kept in found if at == instance), 0)
            if most is None or most[1] * self._page_size <= own:
                continue
            kept = self._kept[most[0]][instance]
            if most[1] <= len(kept.page_keys):  # else the worker named a page that it has not
                parts.append((instance, kept.part(most[1], self._page_size)))
        if not parts:
            return found
        return sorted([*parts, *found], key=lambda each: -each[1].num_tokens)

    def _add(self, instance: str, kept: KeptPrefix) -> None:
        pages = self._pages.get(instance) or PageIndex[bytes](self._page_size)
        if not pages.fits(kept.page_keys):
            return  # the worker is wrong: a key stands for all pages up to its own
        others = self._kept.setdefault(kept.key, {})
        for other in others.values():
            if (other.pages_key, other.num_tokens) != (kept.pages_key, kept.num_tokens):
                return  # one of the two workers is wrong: equal keys have equal ids
        others[instance] = kept
        self._last = None
        self._keys.setdefault(instance, set()).add(kept.key)
        self._known.add(kept.key, kept.pages_key, kept.num_tokens)
        if kept.page_keys:
            self._pages[instance] = pages
            pages.add(kept.key, kept.page_keys)
        self._longest = max(self._longest, kept.num_tokens)

    def _remove(self, instance: str, key: bytes) -> None:
        """Remove a prefix. No-op if the worker does not keep it."""
        if key not in self._keys.get(instance, ()):
            return
        self._last = None
        self._keys[instance].remove(key)
        if not self._keys[instance]:
            del self._keys[instance]
        kept = self._kept[key].pop(instance)
        if kept.page_keys:
            self._pages[instance].remove(key, kept.page_keys)
            if not self._pages[instance]:
                del self._pages[instance]
        if not self._kept[key]:
            del self._kept[key]
            self._known.remove(key, kept.pages_key)


class PendingPrefixes:
    """The whole pages that a worker is computing for prompts. A later prompt that begins with them
    finds a state behind them when its turn comes. Pages that the prompts themselves reuse do not
    count: the worker keeps no state behind pulled pages."""

    def __init__(self) -> None:
        self._pages: Counter[bytes] = Counter()
        self._of: dict[str, list[bytes]] = {}  # by request

    @property
    def requests(self) -> set[str]:
        """Ids of the requests whose prompts are being computed."""
        return set(self._of)

    def add(self, request_id: str, keys: PrefixKeys, num_reused: int) -> None:
        """Add a prompt that was placed at the worker, which reuses its first ``num_reused``
        pages."""
        pages = keys.pages_up_to(min(keys.num_pages, MAX_PENDING_PAGES))[num_reused + 1 :]
        self._of[request_id] = pages
        self._pages.update(pages)

    def remove(self, request_id: str) -> None:
        """Remove a prompt that is computed or cancelled. No-op for an unknown prompt."""
        for page in self._of.pop(request_id, ()):
            self._pages[page] -= 1
            if not self._pages[page]:
                del self._pages[page]

    def num_pages(self, keys: PrefixKeys, max_pages: int) -> int:
        """Number of whole pages, at most ``max_pages``, that a prompt shares with a pending one."""
        if not self._pages:
            return 0
        pages = keys.pages_up_to(min(max_pages, MAX_PENDING_PAGES))
        return next((n for n in range(len(pages) - 1, 0, -1) if pages[n] in self._pages), 0)
