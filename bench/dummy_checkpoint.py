"""``python -m bench.dummy_checkpoint``: a folder that serves a full-size model without its files.

    python -m bench.dummy_checkpoint --out /tmp/qwen
    baton up --model /tmp/qwen --load-format dummy

It has the config of a model, a tokenizer of the same size with made-up words, and a ChatML
template. Weights are drawn at start, so its text is noise, but its cost is real. Every word is a
token, and every token except the single bytes is a word or the beginning of one. So text and ids
correspond both ways, and a benchmark can count the tokens of a text. Merges make each word
letter by letter. Other servers use a tokenizer that transformers derives from vocabulary and
merges, and so count the same tokens. With ``--layers 4 --vocab 1024`` a worker starts in seconds,
and computes with the same kernels.
"""

import json
import shutil
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated

import typer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bench.environment import ROOT

SPECIAL = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>", 24: "<think>", 25: "</think>"}
NUM_SPECIAL = 33
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORD_LEN = 4
_SPACE = "Ġ"  # how a byte-level vocabulary writes a space


def make_tokenizer(first_special_id: int) -> Tokenizer:
    """A tokenizer of 256 bytes, words and their beginnings up to ``first_special_id``, and the
    special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words, beginnings = _words(first_special_id - len(alphabet))
    vocab = {token: i for i, token in enumerate([*alphabet, *words, *beginnings])}
    merges = [(text[:-1], text[-1]) for text in sorted([*words, *beginnings], key=len)]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [SPECIAL.get(i, f"<|extra_{i}|>") for i in range(NUM_SPECIAL)]
    tokenizer.add_special_tokens([AddedToken(n, special=True, normalized=False) for n in names])
    return tokenizer


def make_folder(config: Path, out: Path, first_special_id: int | None = None) -> None:
    """Fill ``out`` with the JSON files of ``config`` and the tokenizer, whose special tokens begin
    where the model's do, or at ``first_special_id``. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    for file in config.glob("*.json"):
        shutil.copy(file, out / file.name)
    make_tokenizer(first_special_id or first_special(config)).save(
        str(out / "tokenizer.json"), pretty=False
    )
    (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[2]}))
    (out / "chat_template.jinja").write_text(TEMPLATE)


def first_special(config: Path) -> int:
    """The least id of a token that begins or ends a text, as of Qwen's ``<|endoftext|>``; the other
    special tokens follow it. Raises ValueError if ``config`` names none."""
    whole = json.loads((config / "config.json").read_text())
    text = whole.get("text_config", whole)
    named = [text.get(f"{kind}_token_id") for kind in ("bos", "eos")]
    ids = [i for each in named for i in (each if isinstance(each, list) else [each]) if i]
    if not ids:
        raise ValueError(f"{config / 'config.json'} names neither bos_token_id nor eos_token_id")
    least: int = min(ids)
    return least


def _words(count: int) -> tuple[list[str], list[str]]:
    """Words and the beginnings of words, ``count`` in all: each word's beginnings are there."""
    words: list[str] = []
    beginnings: dict[str, None] = {}
    for letters in product(ascii_lowercase, repeat=_WORD_LEN):
        word = _SPACE + "".join(letters)
        for length in range(2, len(word)):
            if len(words) + len(beginnings) < count:
                beginnings.setdefault(word[:length])
        if len(words) + len(beginnings) == count:
            break
        words.append(word)
    return words, list(beginnings)


def main(
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    config: Annotated[Path, typer.Option(help="A folder with config.json.")] = (
        ROOT / "bench" / "models" / "qwen3.5-35b-a3b"
    ),
    layers: Annotated[int | None, typer.Option(help="Keep only the first N.", min=4)] = None,
    vocab: Annotated[
        int | None, typer.Option(help="Token ids, special ones included; a multiple of 64.")
    ] = None,
) -> None:
    """Make a folder for ``baton up --load-format dummy``."""
    if not (config / "config.json").is_file():
        typer.echo(f"error: --config: {config} has no config.json", err=True)
        raise typer.Exit(2)
    make_folder(config, out, vocab - NUM_SPECIAL if vocab else None)
    if layers or vocab:
        shrink(out, layers, vocab)


def shrink(folder: Path, num_layers: int | None, vocab_size: int | None) -> None:
    """Keep only the first layers and token ids of the folder's model; ``None`` keeps all."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    if num_layers:
        if "layer_types" in text:
            text["layer_types"] = text["layer_types"][:num_layers]
        text["num_hidden_layers"] = num_layers
    if vocab_size:
        text["vocab_size"] = vocab_size
        text["eos_token_id"] = vocab_size - NUM_SPECIAL
        (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    typer.run(main)
