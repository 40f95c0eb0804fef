"""Trains the tiny model on one GPU: `python -m models.recipe.train --out models/tiny`.

Needs the tokenizer in `--out` first. The learning rate falls to zero at `--steps` or at
`--max-minutes` after the start (compilation included), whichever is nearer, so a slower GPU still
ends with a finished model.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from models.recipe.architecture import CONFIG, save
from models.recipe.batches import CYCLE, Batches
from models.recipe.forward import logits_and_balance, one_layer

RunLayer = Callable[..., tuple[Tensor, Tensor]]

PEAK_RATE = 2e-3
WARMUP_STEPS = 300
BALANCE = 0.003
LOG_EVERY = 205  # one more than a multiple of the cycle of batches: reports see every kind


def new_model(seed: int) -> Qwen3_5MoeForCausalLM:
    """Randomly initialised; decay rates spread as in the DeltaNet papers (dt from 1e-3 to 0.1)."""
    torch.manual_seed(seed)
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**CONFIG)).float()
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            dt = torch.empty_like(parameter).uniform_(math.log(1e-3), math.log(0.1)).exp()
            parameter.data = dt + torch.log(-torch.expm1(-dt))
    return model


def loss_of(
    model: nn.Module, ids: Tensor, weights: Tensor, run_layer: RunLayer
) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and its part from answers alone (nats per token)."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits, balance = logits_and_balance(model, ids, run_layer)
    each = F.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    weight = weights[:, 1:].flatten()
    answers = (weight == 1).float()
    loss = (each * weight).sum() / weight.sum()
    return loss + BALANCE * balance, (each * answers).sum() / answers.sum()


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    """Weight decay for matrices only."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)


def rate(step: int, progress: float) -> float:
    """Linear warm-up, then a cosine down to zero at `progress` one."""
    return PEAK_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (1 + math.cos(math.pi * progress)) / 2


def compiled_layer(model: nn.Module, batches: Batches) -> RunLayer:
    """`one_layer`, compiled for every shape of batches before the schedule starts."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return one_layer
    torch._dynamo.config.recompile_limit = 32  # two kinds of layer, each for every shape
    layer = torch.compile(one_layer, dynamic=False)
    for step in {shape.length: i for i, shape in enumerate(CYCLE)}.values():
        ids, weights = (x.to(device) for x in batches[step])
        loss_of(model, ids, weights, layer)[0].backward()
        model.zero_grad(set_to_none=True)
    return layer


def train(
    model: nn.Module,
    loader: DataLoader[Any],
    run_layer: RunLayer,
    args: argparse.Namespace,
    start: float,
) -> Iterator[dict[str, Any]]:
    """Run to the end, yielding a report now and then and once at the end. `start`: when the
    process's time began, by the monotonic clock."""
    device = next(model.parameters()).device
    optimizer = optimizer_of(model)
    begin, tokens = time.monotonic(), 0
    limit = max(1.0, 60 * args.max_minutes - (begin - start))
    for step, (ids, weights) in enumerate(loader):
        progress = min(1.0, max(step / args.steps, (time.monotonic() - begin) / limit))
        for group in optimizer.param_groups:
            group["lr"] = rate(step, progress)
        ids, weights = (x.to(device, non_blocking=True) for x in (ids, weights))
        loss, answers = loss_of(model, ids, weights, run_layer)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += ids.numel()
        done = progress == 1.0 or step + 1 == args.steps
        if done or step % LOG_EVERY == 0:
            yield {
                "step": step + 1,
                "minutes": round((time.monotonic() - begin) / 60, 2),
                "tokens": tokens,
                "row_length": ids.shape[1],
                "loss": round(loss.item(), 4),
                "answer_loss": round(answers.item(), 5),
            }
        if done:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models/tiny"))
    parser.add_argument("--steps", type=int, default=6500)
    parser.add_argument("--max-minutes", type=float, default=60.0)
    parser.add_argument("--scale", type=float, default=1.0, help="batch size factor")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    start = time.monotonic()

    torch.set_float32_matmul_precision("high")
    batches = Batches(args.out / "tokenizer.json", f"train-{args.seed}", args.steps, args.scale)
    loader = DataLoader(
        batches, batch_size=None, num_workers=args.workers, pin_memory=args.device == "cuda"
    )
    model = new_model(args.seed).to(args.device)
    run_layer = compiled_layer(model, batches)
    reports = []
    for report in train(model, loader, run_layer, args, start):
        print(json.dumps(report), flush=True)
        reports.append(report)
        if report["step"] % (10 * LOG_EVERY) == 1:
            save(model, args.out)
    save(model, args.out)
    result = {
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "arguments": {k: v for k, v in vars(args).items() if k != "out"},
        "parameters": sum(p.numel() for p in model.parameters()),
        "reports": reports,
    }
    (args.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
