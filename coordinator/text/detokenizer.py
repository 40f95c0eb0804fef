"""Turns token ids into text without broken characters, and finds stop strings in it.

Stop strings are found by Aho-Corasick in one step per character, also across the border of two
pieces of text.
"""

import codecs
import json
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import tokenizers


class TokenBytes(dict[int, bytes]):
    """``table[token_id]`` → its bytes; b"" for an id that the tokenizer does not have.

    Joined over a sequence and decoded as UTF-8 with replacement, they are exactly what the
    tokenizer's own decode gives (tokenizers ``decoders/byte_level``). Filled as it is used.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Raises ValueError when the vocabulary is not a byte-level one."""
        super().__init__()
        decoder = (json.loads(backend.to_str())["decoder"] or {}).get("type")
        if decoder != "ByteLevel":
            raise ValueError(f"tokenizer.json: decoder {decoder!r}, only ByteLevel is supported")
        self._backend = backend

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        self[token_id] = found = b"" if token is None else _bytes_of(token)
        return found


def _bytes_of(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:  # an added token that is written as plain text
        return token.encode("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()


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
        """The text held back at the end: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", True)


class Matched(NamedTuple):
    """Text that may be sent now; ``stop`` is the stop string that ended it."""

    text: str
    stop: str | None = None


class StopStrings:
    """The stop strings of a request, compiled once and shared by its choices."""

    def __init__(self, strings: Sequence[str]) -> None:
        """None of ``strings`` may be empty."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match_len = [0]  # the longest stop string that ends at this node
        self._fallback = [0]
        for string in strings:
            assert string, "an empty stop string matches everywhere"
            self._match_len[self._insert(string)] = len(string)
        self._link()

    def matcher(self) -> "StopMatcher | NoStops":
        return StopMatcher(self) if self._next[0] else NoStops()

    def step(self, node: int, char: str) -> int:
        """The node of the longest start of a stop string that the text, plus ``char``, ends in."""
        while node and char not in self._next[node]:
            node = self._fallback[node]
        return self._next[node].get(char, 0)

    def depth(self, node: int) -> int:
        return self._depth[node]

    def match_len(self, node: int) -> int:
        """Length of the longest stop string that ends here; 0 if none does."""
        return self._match_len[node]

    def _insert(self, string: str) -> int:
        node = 0
        for char in string:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[node] + 1)
                self._match_len.append(0)
                self._fallback.append(0)
            node = self._next[node][char]
        return node

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                self._fallback[child] = self.step(self._fallback[node], char)
                if not self._match_len[child]:
                    self._match_len[child] = self._match_len[self._fallback[child]]
                queue.append(child)


class StopMatcher:
    """Finds the stop string that ends first in one text.

    Holds back only what may be the start of a stop string. The result does not depend on how
    the text was cut into pieces; of stop strings that end together the longest counts.
    """

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._node = 0
        self._held = ""

    def push(self, text: str, *, include_stop: bool = False) -> Matched:
        """Feed text; after a stop string nothing more may be fed. The stop string itself is
        part of the text only with ``include_stop``."""
        strings, node = self._strings, self._node
        buffer = self._held + text
        for at, char in enumerate(text, start=len(self._held) + 1):
            node = strings.step(node, char)
            if length := strings.match_len(node):
                self._held = ""
                stop = buffer[at - length : at]
                return Matched(buffer[: at if include_stop else at - length], stop)
        self._node = node
        cut = len(buffer) - strings.depth(node)
        self._held = buffer[cut:]
        return Matched(buffer[:cut])

    def flush(self) -> str:
        """The text that was held back and turned out not to be a stop string."""
        held, self._held, self._node = self._held, "", 0
        return held


class NoStops:
    """The matcher of a request without stop strings."""

    def push(self, text: str, *, include_stop: bool = False) -> Matched:
        return Matched(text)

    def flush(self) -> str:
        return ""


def may_begin(text: str, *tags: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of one of ``tags``.

    >>> may_begin("so <too", "<tool_call>"), may_begin("so <b", "<tool_call>")
    (4, 0)
    """
    longest = min(len(text), max(map(len, tags)) - 1)
    for length in range(longest, 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0
