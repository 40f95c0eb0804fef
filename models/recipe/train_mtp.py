"""Trains the draft layer of a finished model: `python -m models.recipe.train_mtp`.

The trunk is fixed. The layer learns the trunk's own distribution of every token, of answers mostly,
for the first draft and, with less weight, for the second and third of a chain: a draft is accepted
when it is what the trunk samples.
"""

import json
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3_5MoeForCausalLM

from models.recipe.architecture import add_draft
from models.recipe.forward import hidden_and_balance
from models.recipe.mtp import Draft, stored
from models.recipe.training import BETAS, PEAK_RATE, arguments, loader_of, train, write_result

WARMUP_STEPS = 100
BALANCE = 0.003
DEPTH_WEIGHTS = (1.0, 0.5, 0.3)
LOG_EVERY = 103


def loss_of(trunk: nn.Module, draft: Draft, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and the share of right drafts at each depth where those before it are
    right, on the tokens of answers."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        with torch.no_grad():
            hidden, _ = hidden_and_balance(trunk, ids)
            embedded = trunk.model.embed_tokens(ids)
            wanted = trunk.lm_head(hidden).float()
        drafted, balance = draft.chain(embedded[:, 1:], hidden[:, :-1], len(DEPTH_WEIGHTS))
        logits = [F.linear(m[:, :-1], trunk.lm_head.weight).float() for m in drafted]
    loss, rates = BALANCE * balance, []
    right = torch.ones_like(ids, dtype=torch.bool)
    for k, share in enumerate(DEPTH_WEIGHTS):
        target, weight = wanted[:, 1 + k : -1], weights[:, 2 + k :]
        each = F.cross_entropy(
            logits[k].flatten(0, 1), target.softmax(-1).flatten(0, 1), reduction="none"
        )
        loss = loss + share * (each * weight.flatten()).sum() / weight.sum()
        tried = right[:, : weight.shape[1]] & (weight == 1)
        right = tried & (logits[k].argmax(-1) == target.argmax(-1))
        rates.append(right.sum() / tried.sum().clamp(min=1))
    return loss, torch.stack(rates)


def main() -> None:
    args = arguments(__doc__, steps=2000)
    start = time.monotonic()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    loader = loader_of(args, "mtp")
    trunk = Qwen3_5MoeForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    trunk = trunk.to(args.device).eval().requires_grad_(False)
    draft = Draft(trunk.config).to(args.device)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=PEAK_RATE, betas=BETAS, fused=True)
    reports = []
    for report, accepted in train(
        optimizer, partial(loss_of, trunk, draft), loader, args,
        start=start, warmup_steps=WARMUP_STEPS, log_every=LOG_EVERY,
    ):  # fmt: skip
        reports.append(report | {"accepted": [round(each, 4) for each in accepted.tolist()]})
        print(json.dumps(reports[-1]), flush=True)
    add_draft(stored(draft), args.out)
    write_result(args.out / "training_mtp.json", args, draft, reports)


if __name__ == "__main__":
    main()
