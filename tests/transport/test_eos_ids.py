"""The coordinator and a worker know the same ids that end a sequence."""

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.text.tokenizer import Tokenizer
from engine.sampling.grammars import grammars_of
from tests.coordinator.checkpoint_folder import make_backend, write_checkpoint
from transport.eos_ids import eos_ids

ID_OF = make_backend().token_to_id
END, STOP, PLAIN = ID_OF("<|endoftext|>"), ID_OF("<|im_end|>"), ID_OF("a")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose generation_config.json and config.json name no id."""
    folder = write_checkpoint(tmp_path)
    (folder / "generation_config.json").unlink()
    write(folder, "config.json", max_position_embeddings=64)
    return folder


def write(folder: Path, name: str, **content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("eos_token", "token_id"),
    [("<|im_end|>", STOP), ({"content": "<|endoftext|>"}, END), ("a", PLAIN)],
)
def test_an_id_that_only_the_tokenizer_names_is_known_to_both(
    folder: Path, eos_token: Any, token_id: int
) -> None:
    write(folder, "tokenizer_config.json", eos_token=eos_token)
    tokenizer, grammars = Tokenizer.load(folder), grammars_of(folder, 600)
    assert grammars is not None
    assert tokenizer.info.eos_ids == grammars.eos_ids == (token_id,)
    tokenizer.close()


def test_each_id_counts_once_those_of_the_generation_first(folder: Path) -> None:
    write(folder, "tokenizer_config.json", eos_token="<|im_end|>")
    write(folder, "config.json", eos_token_id=END, text_config={"eos_token_id": [7, STOP]})
    assert eos_ids(folder) == (END, 7, STOP)
    write(folder, "generation_config.json", eos_token_id=[STOP, END])
    assert eos_ids(folder) == (STOP, END, 7)


@pytest.mark.parametrize("eos_token", [None, "", "no such token", {}])
def test_a_tokenizer_may_name_none(folder: Path, eos_token: Any) -> None:
    write(folder, "tokenizer_config.json", eos_token=eos_token)
    assert eos_ids(folder) == ()


@pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens": []}'])
def test_a_file_that_is_no_tokenizer_is_named(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer"):
        eos_ids(folder)
