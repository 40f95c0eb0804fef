"""What one worker keeps of earlier requests, as it has told. Pure."""

from transport.wire.offers import KeptPrefix, PrefixesChanged
from transport.wire.prefix import KnownPrefixes, PrefixKeys


class KeptPrefixes:
    """A worker's kept prefixes by key, and the longest of them for a prompt."""

    def __init__(self, page_size: int) -> None:
        self._known = KnownPrefixes(page_size)
        self._kept: dict[bytes, KeptPrefix] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def change(self, message: PrefixesChanged) -> None:
        """Take in what the worker says."""
        for key in message.removed:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._known.remove(key, kept.pages_key)
        for kept in message.added:
            self._kept[kept.key] = kept
            self._known.add(kept.key, kept.pages_key, kept.num_tokens)

    def longest(self, keys: PrefixKeys, max_tokens: int) -> KeptPrefix | None:
        """The longest of at most ``max_tokens`` tokens that the prompt begins with."""
        found = self._known.longest(keys, max_tokens)
        return None if found is None else self._kept[found[0]]
