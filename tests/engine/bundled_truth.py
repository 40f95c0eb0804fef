"""transformers' log-probabilities of a prompt under the bundled model, float32."""

import random
from functools import cache
from pathlib import Path

import tokenizers
import torch
from transformers import Qwen3_5MoeForCausalLM

from models.recipe.stories import story

TINY = Path(__file__).parents[2] / "models" / "tiny"


@cache
def _model() -> Qwen3_5MoeForCausalLM:
    return Qwen3_5MoeForCausalLM.from_pretrained(
        TINY, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@torch.inference_mode()
def prompt_truth(ids: list[int], num_ids: int | None = None) -> torch.Tensor:
    """For each token but the first: the log-probabilities [tokens - 1, ids] in its place, of the
    first ``num_ids`` ids, which are all that have a text (None: of all)."""
    logits = _model()(torch.tensor([ids])).logits[0, :-1, :num_ids]
    return torch.as_tensor(logits.float().log_softmax(-1))


@cache
def _problems() -> list[int]:
    rng = random.Random(1)
    problems = [story(rng) for _ in range(60)]
    text = "".join(f"Question: {each.question}\nAnswer: {each.answer}\n\n" for each in problems)
    return list(tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json")).encode(text).ids)


def text_ids(length: int, start: int = 0) -> list[int]:
    """So many tokens of problems like those that the model has learned from."""
    assert start + length <= len(_problems()), len(_problems())
    return _problems()[start : start + length]
