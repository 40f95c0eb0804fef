"""Trains the tiny model on one GPU: `python -m models.recipe.train --out models/tiny`.

Needs the tokenizer in `--out` first. The learning rate falls to zero at `--steps` or at
`--max-minutes` after the start (compilation included), whichever is nearer, so a slower GPU still
ends with a finished model.
"""

import json
import math
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from models.recipe.architecture import CONFIG, save
from models.recipe.batches import CYCLE, Batches
from models.recipe.forward import logits_and_balance, one_layer
from models.recipe.training import BETAS, PEAK_RATE, arguments, loader_of, train, write_result

RunLayer = Callable[..., tuple[Tensor, Tensor]]

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
    return torch.optim.AdamW(groups, lr=PEAK_RATE, betas=BETAS, fused=True)


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


def main() -> None:
    args = arguments(__doc__, steps=6500)
    start = time.monotonic()
    torch.set_float32_matmul_precision("high")
    loader = loader_of(args, "train")
    model = new_model(args.seed).to(args.device)
    loss = partial(loss_of, model, run_layer=compiled_layer(model, loader.dataset))
    reports = []
    for report, answers in train(
        optimizer_of(model), loss, loader, args,
        start=start, warmup_steps=WARMUP_STEPS, log_every=LOG_EVERY,
    ):  # fmt: skip
        reports.append(report | {"answer_loss": round(answers.item(), 5)})
        print(json.dumps(reports[-1]), flush=True)
        if report["step"] % (10 * LOG_EVERY) == 1:
            save(model, args.out)
    save(model, args.out)
    write_result(args.out / "training.json", args, model, reports)


if __name__ == "__main__":
    main()
