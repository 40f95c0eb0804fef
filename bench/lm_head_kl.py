"""``python -m bench.lm_head_kl``: how far FP8 in ``lm_head`` alone moves the softmax of the logits.

KL divergence from the softmax of the logits of a plain ``lm_head``, with the same hidden states: of
the bundled model behind its held-out problems and answers, and of random normed states and a random
``lm_head`` of the full size, whose logits have a given standard deviation. On a CPU, in float32.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from tokenizers import Tokenizer

from bench import result_file
from bench.environment import describe
from engine.batch import Row
from engine.config import EngineConfig
from engine.inputs import Inputs
from engine.model.matrix import dequantise, quantise
from engine.model.model import finished
from engine.model.quantization import BLOCK
from engine.model.registry import read_config
from engine.runner import Engine

MODELS = Path("models")
FULL_SIZE = Path("bench/models/qwen3.5-35b-a3b")
DEVIATIONS = (1.0, 2.0, 3.0, 4.0)
"""Standard deviations of random logits; dummy weights have 1."""
PAGES = 32
BAND = 128 * 64
"""Rows of a random ``lm_head`` that are drawn and converted at a time."""


@torch.inference_mode()
def bundled(num_problems: int) -> dict[str, float]:
    """The bundled model at every token of held-out problems and answers."""
    folder = MODELS / "tiny"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = EngineConfig(folder, num_pages=PAGES, num_state_slots=1, dtype="float32")
    engine = Engine.load(config, lambda n: torch.zeros(n, dtype=torch.uint8))
    lines = (MODELS / "heldout.jsonl").read_text().splitlines()[:num_problems]
    found = []
    for problem in map(json.loads, lines):
        text = (
            f"<|im_start|>user\n{problem['question']}<|im_end|>\n<|im_start|>assistant\n"
            f"<think>\n\n</think>\n\n{problem['answer']}"
        )
        ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        row = Row(0, tuple(range(PAGES)), 0, ids)
        inputs = Inputs.of((row,), engine.layout, torch.device("cpu"))
        hidden = finished(
            engine._model.forward(
                inputs, inputs.prefill_ids, engine.cache, engine._kernels, every_token=True
            )
        )
        found.append(divergences(*both_logits(hidden, engine._model.weights.lm_head.plain)))
    return summary(torch.cat(found))


@torch.inference_mode()
def full_size(num_rows: int) -> dict[float, dict[str, float]]:
    """Random states and weights of the full size in bfloat16, by the deviation of the logits."""
    config, generator = read_config(FULL_SIZE), torch.Generator().manual_seed(0)
    hidden = torch.randn(num_rows, config.hidden_size, generator=generator).bfloat16().float()
    bands = []
    for first in range(0, config.vocab_size, BAND):
        rows = min(BAND, config.vocab_size - first)
        drawn = torch.randn(rows, config.hidden_size, generator=generator)
        weight = (drawn * config.hidden_size**-0.5).bfloat16().float()
        bands.append(both_logits(hidden, weight))
    plain, fp8 = (torch.cat(parts, dim=-1) for parts in zip(*bands, strict=True))
    return {each: summary(divergences(plain * each, fp8 * each)) for each in DEVIATIONS}


def both_logits(hidden: torch.Tensor, lm_head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of hidden [rows, hidden] by lm_head [ids, hidden], and by the same in FP8."""
    padded = F.pad(lm_head, (0, 0, 0, -lm_head.shape[0] % BLOCK))
    rounded = dequantise(*quantise(padded), BLOCK)[: lm_head.shape[0]]
    return F.linear(hidden, lm_head), F.linear(hidden, rounded)


def divergences(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """KL divergence of the softmax of ``others`` from that of ``logits``, of each row."""
    plain, other = logits.log_softmax(-1), others.log_softmax(-1)
    return (plain.exp() * (plain - other)).sum(-1)


def summary(kls: torch.Tensor) -> dict[str, float]:
    """Mean and largest KL divergence, and the number of tokens."""
    return {"tokens": kls.numel(), "mean": float(kls.mean()), "max": float(kls.max())}


def main(
    num_problems: int = 200,
    num_rows: Annotated[int, typer.Option(help="Random states.")] = 64,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("bench/results/lm-head-kl.json"),
) -> None:
    results: dict[str, Any] = {"bundled": bundled(num_problems)}
    for deviation, found in full_size(num_rows).items():
        results[f"full size, logits of deviation {deviation}"] = found
    for name, each in results.items():
        print(f"{name}: mean KL {each['mean']:.6f}, at most {each['max']:.6f}")
    result_file.write(out, {"environment": describe(sys.argv[1:], "bench.lm_head_kl")} | results)


if __name__ == "__main__":
    typer.run(main)
