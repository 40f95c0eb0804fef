"""Token ids to text as they come, never a broken character."""

import codecs
from collections.abc import Mapping
from collections.abc import Set as AbstractSet


class Detokenizer:
    """Text of one growing sequence, in O(bytes of the token) each.

    All that ``push`` and ``flush`` return, joined, equals the tokenizer's decode of all ids:
    bytes are held back while they may still become a character.
    """

    def __init__(self, token_bytes: Mapping[int, bytes], skip_ids: AbstractSet[int]) -> None:
        self._token_bytes = token_bytes
        self._skip_ids = skip_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; often none in the middle of a character."""
        if token_id in self._skip_ids:
            return ""
        return self._decoder.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", True)
