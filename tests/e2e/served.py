"""Random checkpoints that can be served: tests/engine/checkpoints.py plus a tokenizer.

The tokenizer's ids are the 256 bytes and seven added tokens, just as many as the vocabulary of
those checkpoints has, so every id a model can choose has a text.
"""

import json
import shutil
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bench.stack import ROOT
from tests.coordinator.checkpoint_folder import PLAIN, SPECIAL, TEMPLATE
from tests.engine.checkpoints import BASE, checkpoint

TINY = ROOT / "models" / "tiny"
"""The bundled model."""
LONG = 16_000


@cache
def served(name: str) -> Path:
    """``with_tokenizer`` of checkpoint ``name``."""
    return with_tokenizer(checkpoint(name))


def with_tokenizer(model: Path) -> Path:
    """A copy of the folder ``model``, with its tokenizer and chat template: engine tests in the
    same process use the folder without."""
    folder = model.parent / "served" / model.name
    shutil.copytree(model, folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    assert backend.get_vocab_size() == BASE["vocab_size"]
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    config = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@cache
def served_long(name: str) -> Path:
    """``for_long`` of ``served``."""
    return for_long(served(name))


def for_long(model: Path) -> Path:
    """A copy of a folder whose model takes sequences of up to ``LONG`` tokens: with as many to
    come, no stream is over before a test acts, however slow the machine is."""
    folder = model.with_name(f"{model.name}-long")
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONG}))
    return folder
