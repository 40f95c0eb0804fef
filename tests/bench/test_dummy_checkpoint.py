"""A made-up tokenizer in which text and ids correspond."""

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bench.dummy_checkpoint import NUM_SPECIAL, ROOT, SPECIAL, make_folder, make_tokenizer, shrink
from coordinator.text.tokenizer import Tokenizer
from engine.model.registry import read_config


def test_words_are_tokens_both_ways() -> None:
    tokenizer = make_tokenizer(5_000)
    draw = random.Random(1)
    ids = [draw.randrange(256, 5_000) for _ in range(500)]
    assert tokenizer.encode(tokenizer.decode(ids)).ids == ids
    assert [tokenizer.token_to_id(name) for name in SPECIAL.values()] == [
        5_000 + i for i in SPECIAL
    ]


def test_other_servers_count_the_same_tokens(tmp_path: Path) -> None:
    """transformers builds the tokenizer of this model type anew, without ``ignore_merges``."""
    make_folder(ROOT / "bench" / "models" / "qwen3.5-35b-a3b", tmp_path, 5_000)
    ours, theirs = make_tokenizer(5_000), AutoTokenizer.from_pretrained(tmp_path)
    draw = random.Random(2)
    text = ours.decode([draw.randrange(256, 5_000) for _ in range(500)])
    text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert len(ours.encode(text).ids) < 530
    assert theirs(text)["input_ids"] == ours.encode(text).ids


@pytest.mark.parametrize("count", [300, 400, 5_000, 5_001, 5_002])
def test_every_id_below_the_special_ones_is_a_token(count: int) -> None:
    assert make_tokenizer(count).get_vocab_size() == count + NUM_SPECIAL


def test_the_coordinator_serves_it_with_the_models_own_ids(tmp_path: Path) -> None:
    make_folder(ROOT / "bench" / "models" / "qwen3.5-35b-a3b", tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    try:
        start, *_ = tokenizer.encode_chat([{"role": "user", "content": " aaab aaac"}])
        assert start == 248_045
        assert tokenizer.decode([257, 248_043]) == " aaab" + tokenizer.decode([248_043])
        assert tokenizer.num_valid_ids == 248_077
    finally:
        tokenizer.close()


@pytest.mark.parametrize(
    ("folder", "first"),
    [("qwen3-0.6b", 151_643), ("llama-3.1-8b", 128_000)],
)
def test_special_tokens_begin_where_the_models_do(folder: str, first: int, tmp_path: Path) -> None:
    config = ROOT / "bench" / "models" / folder
    make_folder(config, tmp_path)
    tokenizer, model = Tokenizer.load(tmp_path), read_config(tmp_path)
    try:
        assert tokenizer.num_valid_ids == first + NUM_SPECIAL <= model.vocab_size
        assert tokenizer.encode_chat([{"role": "user", "content": "x"}])[0] == first + 1
    finally:
        tokenizer.close()
    shrink(tmp_path, 4, None)
    assert len(read_config(tmp_path).layers) == 4


def test_a_model_without_a_last_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 512}')
    with pytest.raises(ValueError, match="names neither bos_token_id nor eos_token_id"):
        make_folder(tmp_path, tmp_path / "out")


def test_a_small_one_keeps_the_first_layers_and_ids(tmp_path: Path) -> None:
    config = ROOT / "bench" / "models" / "qwen3.5-35b-a3b"
    make_folder(config, tmp_path, 1024 - NUM_SPECIAL)
    shrink(tmp_path, 4, 1024)
    model = read_config(tmp_path)
    assert (len(model.layers), model.vocab_size) == (4, 1024)
    tokenizer = Tokenizer.load(tmp_path)
    try:
        assert tokenizer.num_valid_ids <= 1024
    finally:
        tokenizer.close()
