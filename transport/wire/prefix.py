"""The keys by which workers and the coordinator name a prefix of a prompt. Pure.

Whole pages are hashed in a chain: the key of ``n`` pages is the hash of the key of ``n - 1`` pages
and of the last page's ids. A prefix that ends within a page has the hash of its whole pages' key
and of the ids behind them. The chain begins with the model's fingerprint and a salt. So two
prefixes with the same key have the same ids, of the same model, for the same tenant.
"""

from collections import Counter
from copy import copy
from hashlib import blake2b

from transport.wire.token_ids import ID_BYTES, TokenIds, to_wire

KEY_BYTES = 16


class PrefixKeys:
    """The keys of one prompt's prefixes, hashed on demand.

    ``page_size`` is in tokens.
    """

    def __init__(self, model: str, salt: str, token_ids: TokenIds, page_size: int) -> None:
        self._ids = memoryview(to_wire(token_ids))
        self.page_size = page_size
        self._page_bytes = page_size * ID_BYTES
        self._pages = [_hash(_hash(b"", model.encode()), salt.encode())]

    @property
    def num_tokens(self) -> int:
        return len(self._ids) // ID_BYTES

    @property
    def num_pages(self) -> int:
        """Number of whole pages of the prompt."""
        return len(self._ids) // self._page_bytes

    def pages(self, num_pages: int) -> bytes:
        """The key of the first ``num_pages`` whole pages."""
        assert num_pages <= self.num_pages, f"{num_pages} of {self.num_pages} pages"
        known, ids, size = self._pages, self._ids, self._page_bytes
        for start in range((len(known) - 1) * size, num_pages * size, size):
            # As _hash: a call for each page would take a third longer, on an event loop.
            page = blake2b(ids[start : start + size], digest_size=KEY_BYTES, key=known[-1])
            known.append(page.digest())
        return known[num_pages]

    def hash_all(self) -> None:
        """Hash the pages that are not hashed yet."""
        self.pages(self.num_pages)

    def pages_up_to(self, num_pages: int) -> list[bytes]:
        """The keys of the first 0, 1, … ``num_pages`` whole pages."""
        self.pages(num_pages)
        return self._pages[: num_pages + 1]

    def followed(self, token_ids: TokenIds) -> "PrefixKeys":
        """The keys of a sequence that begins with these tokens, without hashing pages again. The
        tokens themselves are not compared."""
        longer = copy(self)
        longer._ids = memoryview(to_wire(token_ids))
        assert len(longer._ids) >= len(self._ids), "followed by fewer tokens"
        longer._pages = self._pages.copy()
        return longer

    def pages_within(self, num_tokens: int) -> bytes:
        """The key of the whole pages of the first ``num_tokens`` tokens."""
        return self.pages(num_tokens // self.page_size)

    def prefix(self, num_tokens: int) -> bytes:
        """The key of the first ``num_tokens`` tokens."""
        num_pages, tail = divmod(num_tokens, self.page_size)
        whole = self.pages(num_pages)
        if not tail:
            return whole
        start = num_pages * self._page_bytes
        return _hash(whole, self._ids[start : start + tail * ID_BYTES])


def _hash(before: bytes, data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=KEY_BYTES, key=before).digest()


class KnownPrefixes:
    """An index of known prefixes, to find the longest one that a prompt begins with.

    All keys have this ``page_size``, in tokens.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._lengths: dict[bytes, int] = {}
        self._tails: dict[bytes, Counter[int]] = {}  # by the key of the whole pages

    def __contains__(self, key: bytes) -> bool:
        return key in self._lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, key: bytes, pages_key: bytes, num_tokens: int) -> None:
        """Add a prefix; no-op for a prefix that is known."""
        if key not in self._lengths:
            self._lengths[key] = num_tokens
            self._tails.setdefault(pages_key, Counter())[num_tokens % self._page_size] += 1

    def remove(self, key: bytes, pages_key: bytes) -> None:
        """Remove a prefix; no-op for a prefix that is not known."""
        num_tokens = self._lengths.pop(key, None)
        if num_tokens is None:
            return
        tails = self._tails[pages_key]
        tails[num_tokens % self._page_size] -= 1
        if not tails[num_tokens % self._page_size]:
            del tails[num_tokens % self._page_size]
        if not tails:
            del self._tails[pages_key]

    def longest(self, keys: PrefixKeys, max_tokens: int) -> tuple[bytes, int] | None:
        """Key and length of the longest known prefix of 1 to ``max_tokens`` tokens."""
        most = min(max_tokens // self._page_size, keys.num_pages)
        pages = keys.pages_up_to(most)
        for num_pages in range(most, -1, -1):
            if pages[num_pages] not in self._tails:
                continue
            for tail in sorted(self._tails[pages[num_pages]], reverse=True):
                num_tokens = num_pages * self._page_size + tail
                if not 0 < num_tokens <= min(max_tokens, keys.num_tokens):
                    continue
                key = keys.prefix(num_tokens)
                if key in self._lengths:
                    return key, num_tokens
        return None
