"""The bytes that each token stands for, in a byte-level vocabulary."""

import json

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
