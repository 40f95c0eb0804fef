"""Trains the draft layer of a finished model: `python -m models.recipe.train_mtp`.

The trunk is fixed. The layer learns the trunk's own distribution of every token, of answers mostly,
for the first draft and, with less weight, for the second and third of a chain: a draft is accepted
when it is what the trunk samples.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Qwen3_5MoeForCausalLM

from models.recipe.architecture import add_draft
from models.recipe.batches import Batches
from models.recipe.forward import hidden_and_balance
from models.recipe.mtp import Draft, stored

PEAK_RATE = 2e-3
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


def rate(step: int, progress: float) -> float:
    """Linear warm-up, then a cosine down to zero at `progress` one."""
    return PEAK_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 + math.cos(math.pi * progress)) / 2


def train(
    trunk: nn.Module, draft: Draft, loader: DataLoader[Any], args: argparse.Namespace, start: float
) -> Iterator[dict[str, Any]]:
    """Run to the end, yielding a report now and then and once at the end."""
    optimizer = torch.optim.AdamW(draft.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)
    begin = time.monotonic()
    limit = max(1.0, 60 * args.max_minutes - (begin - start))
    for step, (ids, weights) in enumerate(loader):
        progress = min(1.0, max(step / args.steps, (time.monotonic() - begin) / limit))
        for group in optimizer.param_groups:
            group["lr"] = rate(step, progress)
        ids, weights = (x.to(args.device, non_blocking=True) for x in (ids, weights))
        loss, rates = loss_of(trunk, draft, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = progress == 1.0 or step + 1 == args.steps
        if done or step % LOG_EVERY == 0:
            yield {
                "step": step + 1,
                "minutes": round((time.monotonic() - begin) / 60, 2),
                "row_length": ids.shape[1],
                "loss": round(loss.item(), 4),
                "accepted": [round(each, 4) for each in rates.tolist()],
            }
        if done:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/tiny"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--max-minutes", type=float, default=60.0)
    parser.add_argument("--scale", type=float, default=1.0, help="batch size factor")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    start = time.monotonic()

    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    batches = Batches(args.out / "tokenizer.json", f"mtp-{args.seed}", args.steps, args.scale)
    loader = DataLoader(
        batches, batch_size=None, num_workers=args.workers, pin_memory=args.device == "cuda"
    )
    trunk = Qwen3_5MoeForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    trunk = trunk.to(args.device).eval().requires_grad_(False)
    draft = Draft(trunk.config).to(args.device)
    reports = []
    for report in train(trunk, draft, loader, args, start):
        print(json.dumps(report), flush=True)
        reports.append(report)
    add_draft(stored(draft), args.out)
    result = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "arguments": {k: v for k, v in vars(args).items() if k != "out"},
        "parameters": sum(p.numel() for p in draft.parameters()),
        "reports": reports,
    }
    (args.out / "training_mtp.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
