"""Finds the token ids that end a sequence, in the same way at the coordinator and at workers.

The coordinator gives them to a request; a worker's grammars allow them once the output may end."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from transport.checkpoint_folder import CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, read_json


def eos_ids(folder: Path) -> tuple[int, ...]:
    """The end-of-sequence ids of a checkpoint's folder: the ids in generation_config.json and
    config.json, and the id of the ``eos_token`` in tokenizer_config.json. Raises ValueError that
    names the file, if a file is malformed."""
    config = read_json(folder / CONFIG)
    named = [
        read_json(folder / GENERATION, required=False).get("eos_token_id"),
        config.get("eos_token_id"),
        (config.get("text_config") or {}).get("eos_token_id"),
        _id_of_eos_token(folder),
    ]
    return tuple(dict.fromkeys(token_id for value in named for token_id in _ids(value)))


class _AddedToken(Struct):
    id: int
    content: str


class _Model(Struct):
    vocab: msgspec.Raw


class _TokenizerFile(Struct):
    """The part of tokenizer.json that says which id a token has."""

    model: _Model
    added_tokens: list[_AddedToken] = []


def _id_of_eos_token(folder: Path) -> int | None:
    token = read_json(folder / TOKENIZER_CONFIG, required=False).get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    file = folder / TOKENIZER
    if not text or not file.is_file():
        return None
    try:
        tokenizer = msgspec.json.decode(file.read_bytes(), type=_TokenizerFile)
        for added in tokenizer.added_tokens:
            if added.content == text:
                return added.id
        return msgspec.json.decode(tokenizer.model.vocab, type=dict[str, int]).get(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is not a tokenizer: {error}") from error


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
