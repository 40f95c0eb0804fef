"""Builds the tokenizer files of the tiny model: `python -m models.recipe.tokenizer`.

Byte-level BPE in the manner of the Qwen family: NFC, digits split singly (arithmetic is learnt
digit by digit), the same added tokens in the same order.
"""

import argparse
import json
import shutil
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from models.recipe.conversations import chat, document
from models.recipe.mixture import schema_chat, tool_chat

BASE_VOCAB = 1280
TEMPLATE = Path("models/tiny/chat_template.jinja")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Special tokens are left out of decoded text; the plain added ones are part of it.
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
PLAIN = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]


def build(num_texts: int = 20_000, seed: str = "tokenizer-1") -> Tokenizer:
    """Train the merges on generated texts, then append the added tokens."""
    rng = Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=BASE_VOCAB,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_plain_text(rng) for _ in range(num_texts)), trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in PLAIN])
    return tokenizer


def _plain_text(rng: Random) -> str:
    """Two fifths with tools or schemas: they are longer, and must not take all the merges."""
    kind = rng.randrange(5)
    pieces = (
        rng.choice((chat, document))(rng, 1)
        if kind > 1
        else tool_chat(rng)
        if kind
        else schema_chat(rng)
    )
    text = "".join(piece for piece, _ in pieces)
    for token in (*SPECIAL, *PLAIN):
        text = text.replace(token, "")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/tiny"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not (args.out / TEMPLATE.name).exists():
        shutil.copy(TEMPLATE, args.out)
    build().save(str(args.out / "tokenizer.json"))
    config = {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (args.out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
