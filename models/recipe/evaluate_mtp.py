"""Acceptance of the draft layer's tokens: `python -m models.recipe.evaluate_mtp`.

The trunk answers held-out problems greedily, then at temperature 1 with noise that belongs to the
position (Gumbel-max). A draft is accepted when it is the token that the trunk samples, drafts of
the same position using the same noise. Behind every token of an answer a chain of three is drafted.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList

from models.recipe import mtp
from models.recipe.forward import hidden_and_balance

DEPTH = 3
MAX_LEN = 640


class Noise(LogitsProcessor):
    """Adds to the logits of a position what it has in `noise`, [positions, vocab]."""

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + self.noise[input_ids.shape[1]]


def gumbel(vocab_size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -torch.empty(MAX_LEN, vocab_size).exponential_(generator=generator).log()


def right_drafts(model: Any, draft: mtp.Draft, ids: Tensor, begin: int, noise: Tensor) -> Tensor:
    """[tokens drafted behind, DEPTH] of bool: row i is the chain behind token `begin + i`.

    Each draft takes the true tokens before it. That is what a chain takes whose earlier drafts
    were accepted, and the other chains' drafts do not count.
    """
    tokens = ids.shape[1]
    padded = torch.nn.functional.pad(ids, (0, -tokens % 64))
    hidden, _ = hidden_and_balance(model, padded)
    embedded = model.model.embed_tokens(ids[:, 1:])
    found, _ = draft.chain(embedded, hidden[:, : tokens - 1], DEPTH)
    rows = tokens - 1 - begin - DEPTH + 1
    columns = []
    for k, m in enumerate(found):
        first = begin - 1  # row t stands behind token t + 1 and drafts token t + 2 + k
        logits = model.lm_head(m[0, first : first + rows])
        at = begin + 1 + k
        columns.append((logits + noise[at : at + rows]).argmax(-1) == ids[0, at : at + rows])
    return torch.stack(columns, dim=1)


def tokens_a_step(right: Tensor, num_drafts: int) -> float:
    """Tokens per step of decoding with `num_drafts` drafts, along the sequence as it is walked."""
    at = steps = 0
    while at < len(right):
        accepted = int(right[at, :num_drafts].int().cumprod(0).sum())
        at, steps = at + accepted + 1, steps + 1
    return at / max(steps, 1)


def measure(model: Any, draft: mtp.Draft, prompts: list[Tensor], sampled: bool) -> dict[str, Any]:
    accepted, tried = torch.zeros(DEPTH), torch.zeros(DEPTH)
    tokens, steps = 0, [0.0] * DEPTH
    for seed, prompt in enumerate(prompts):
        noise = gumbel(model.config.vocab_size, seed) * float(sampled)
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=200,
            logits_processor=LogitsProcessorList([Noise(noise)]),
        )
        right = right_drafts(model, draft, out, prompt.shape[1], noise)
        before = torch.ones(len(right), dtype=torch.bool)
        for k in range(DEPTH):
            tried[k] += before.sum()
            before = before & right[:, k]
            accepted[k] += before.sum()
        tokens += len(right)
        steps = [s + len(right) / tokens_a_step(right, k + 1) for k, s in enumerate(steps)]
    return {
        "tokens": tokens,
        "acceptance": [round(x, 4) for x in (accepted / tried.clamp(min=1)).tolist()],
        "tokens_a_step": {k + 1: round(tokens / s, 3) for k, s in enumerate(steps)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/tiny"))
    parser.add_argument("--problems", type=Path, default=Path("models/heldout.jsonl"))
    parser.add_argument("--limit", type=int, default=50)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    draft = mtp.load(args.model)
    lines = args.problems.read_text().splitlines()[: args.limit]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": json.loads(line)["question"]}],
            add_generation_prompt=True,
            enable_thinking=False,
            return_dict=True,
            return_tensors="pt",
        )["input_ids"]
        for line in lines
    ]
    with torch.inference_mode():
        result = {
            "problems": len(lines),
            "greedy": measure(model, draft, prompts, sampled=False),
            "temperature_1": measure(model, draft, prompts, sampled=True),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
