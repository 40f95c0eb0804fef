"""Turns token ids into bytes, and a stream of them into text without broken characters."""

import codecs
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

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
