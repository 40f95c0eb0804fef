"""What both trainings share: arguments, batches, the steps, and the file of results."""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from models.recipe.batches import Batches

PEAK_RATE = 2e-3
BETAS = 0.9, 0.98
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def arguments(description: str | None, steps: int) -> argparse.Namespace:
    """The arguments of the command line, with ``steps`` as the default number of steps."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path("models/tiny"))
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--max-minutes", type=float, default=60.0)
    parser.add_argument("--scale", type=float, default=1.0, help="batch size factor")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def loader_of(args: argparse.Namespace, name: str) -> DataLoader[Any]:
    """The batches of the training ``name``."""
    batches = Batches(args.out / "tokenizer.json", f"{name}-{args.seed}", args.steps, args.scale)
    return DataLoader(
        batches, batch_size=None, num_workers=args.workers, pin_memory=args.device == "cuda"
    )


def rate(step: int, progress: float, warmup_steps: int) -> float:
    """Linear warm-up, then a cosine down to zero at `progress` one."""
    return PEAK_RATE * min(1.0, (step + 1) / warmup_steps) * (1 + math.cos(math.pi * progress)) / 2


def train(
    optimizer: torch.optim.Optimizer,
    loss_of: Loss,
    loader: DataLoader[Any],
    args: argparse.Namespace,
    *,
    start: float,
    warmup_steps: int,
    log_every: int,
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Run to the end, yielding a report now and then and once at the end, with what ``loss_of``
    returns beside the loss. `start`: when the process's time began, by the monotonic clock."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    begin, tokens = time.monotonic(), 0
    limit = max(1.0, 60 * args.max_minutes - (begin - start))
    for step, batch in enumerate(loader):
        progress = min(1.0, max(step / args.steps, (time.monotonic() - begin) / limit))
        for group in optimizer.param_groups:
            group["lr"] = rate(step, progress, warmup_steps)
        ids, weights = (x.to(args.device, non_blocking=True) for x in batch)
        loss, measured = loss_of(ids, weights)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += ids.numel()
        done = progress == 1.0 or step + 1 == args.steps
        if done or step % log_every == 0:
            report = {
                "step": step + 1,
                "minutes": round((time.monotonic() - begin) / 60, 2),
                "tokens": tokens,
                "row_length": ids.shape[1],
                "loss": round(loss.item(), 4),
            }
            yield report, measured
        if done:
            return


def write_result(
    path: Path, args: argparse.Namespace, model: nn.Module, reports: list[dict[str, Any]]
) -> None:
    result = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "arguments": {k: v for k, v in vars(args).items() if k != "out"},
        "parameters": sum(p.numel() for p in model.parameters()),
        "reports": reports,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")
