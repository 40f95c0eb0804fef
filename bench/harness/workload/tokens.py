"""Tokenizers that make prompts and count answers: the model's on this machine, or the server's."""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.client import Client

_LOOKS_SPECIAL = re.compile(r"<[^<>\s]*>|\[[A-Z]+\]")


class TokenizerMissing(CannotMeasure):
    """Tokens cannot be counted; the message says what was tried."""


class Tokens(Protocol):
    """A tokenizer that adds no special tokens at the beginning or the end."""

    @property
    def source(self) -> str:
        """The tokenizer's origin, for the report."""
        ...

    def draw(self, random: random.Random, count: int) -> list[int]:
        """Draw ``count`` ids from the vocabulary without special ones."""
        ...

    async def encode(self, text: str) -> list[int]: ...

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special tokens are left out, as servers do."""
        ...


class LocalTokens:
    """The ``tokenizer.json`` of a checkpoint folder. Raises TokenizerMissing."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json" if folder.is_dir() else folder
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerMissing(f"tokenizer: {path.name}: {error}") from None
        # All added tokens: some that steer a model (<think>) are not marked as special.
        added = set(self._tokenizer.get_added_tokens_decoder())
        self._ids = sorted(set(self._tokenizer.get_vocab(with_added_tokens=True).values()) - added)
        self.source = f"tokenizer.json of {path.parent.name}"

    def draw(self, random: random.Random, count: int) -> list[int]:
        return random.choices(self._ids, k=count)

    async def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    async def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class ServerTokens:
    """The server's /tokenize and /detokenize; a call raises TokenizerMissing if it has none.

    The server cannot list its vocabulary, so ``vocab_size`` is given, and text that looks like a
    special token (``<|name|>``, ``[NAME]``) is removed from every decoded text.
    """

    source = "the server's /tokenize"

    def __init__(self, client: Client, model: str, vocab_size: int) -> None:
        self._client, self._model, self._vocab_size = client, model, vocab_size

    def draw(self, random: random.Random, count: int) -> list[int]:
        return random.choices(range(self._vocab_size), k=count)

    async def encode(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        ids: list[int] = (await self._ask("/tokenize", body))["tokens"]
        return ids

    async def decode(self, ids: Sequence[int]) -> str:
        answer = await self._ask("/detokenize", {"model": self._model, "tokens": list(ids)})
        return _LOOKS_SPECIAL.sub("", str(answer["prompt"]))

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        exchange = await self._client.request("POST", path, msgspec.json.encode(body))
        try:
            if exchange.failure is None and exchange.status == 200:
                answer: dict[str, Any] = msgspec.json.decode(exchange.body, type=dict)
                return answer
        except msgspec.DecodeError:
            pass
        why = exchange.detail or f"HTTP {exchange.status} {exchange.body[:100]!r}"
        raise TokenizerMissing(f"no tokenizer given, and the server's {path} failed: {why}")
