"""``python -m bench.weights_quality``: how quantised weights change the bundled model's output.

The model reads held-out problems with their right answers, on the CPU in float32, so that only the
weights differ. For each value of ``--quantize``: the mean Kullback-Leibler divergence of its
next-token distributions from those of the plain weights, in nats a token; the share of tokens at
which the most likely token is the same; and nats a token of the text. The problems have several
likely next tokens, the answers mostly one, so there is a figure for each.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from tokenizers import Tokenizer

from bench.recording import Recording
from engine.batch import Row
from engine.config import EngineConfig, Quantize
from engine.inputs import Inputs
from engine.model.model import finished
from engine.runner import Engine

MODELS = Path(__file__).parents[1] / "models"
FORMATS: tuple[Quantize, ...] = ("none", "fp8", "fp8-lm-head", "nvfp4", "nvfp4-lm-head")
NUM_IDS = 1306
PAGES = 8
PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
END = "<|im_end|>"


def texts(num: int) -> list[tuple[list[int], int]]:
    """(ids of a problem and its answer, ids of the problem) of held-out problems."""
    tokenizer, found = Tokenizer.from_file(str(MODELS / "tiny/tokenizer.json")), []
    for line in (MODELS / "heldout.jsonl").read_text().splitlines()[:num]:
        problem = json.loads(line)
        prompt = PROMPT.format(problem["question"])
        ids, whole = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in (prompt, prompt + problem["answer"] + END)
        )
        found.append((whole, len(ids)))
    return found


def distributions(
    quantize: Quantize, of: Sequence[tuple[list[int], int]]
) -> Iterator[torch.Tensor]:
    """Log-probabilities [tokens - 1, ids] of each text's next tokens."""
    config = EngineConfig(
        MODELS / "tiny", PAGES, 1, dtype="float32", quantize=quantize, num_valid_ids=NUM_IDS
    )
    engine = Engine.load(config, lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))
    model, kernels = engine._model, engine._kernels
    for ids, _ in of:
        row = Row(0, tuple(range(PAGES)), 0, tuple(ids[:-1]))
        inputs = Inputs.of((row,), engine.layout, torch.device("cpu"))
        inputs = replace(inputs, sample_index=torch.arange(len(ids) - 1))
        with torch.inference_mode():
            hidden = finished(model.forward(inputs, inputs.prefill_ids, engine.cache, kernels))
            yield model.logits(hidden, engine.num_ids, kernels).log_softmax(-1)


def compared(
    truth: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    of: Sequence[tuple[list[int], int]],
) -> dict[str, float]:
    """The figures of one format."""
    reference, found = torch.cat(list(truth)), torch.cat(list(own))
    following = torch.cat([torch.tensor(ids[1:]) for ids, _ in of])
    is_answer = torch.cat([torch.arange(1, len(ids)) >= first for ids, first in of])
    kl = (reference.exp() * (reference - found)).sum(-1)
    same = (reference.argmax(-1) == found.argmax(-1)).float()
    nats = -found.gather(-1, following[:, None])[:, 0]
    figures = {"kl_nats": kl, "same_token": same, "text_nats": nats}
    return {
        f"{name}_{part}": float(values[chosen].mean())
        for part, chosen in (("problems", ~is_answer), ("answers", is_answer))
        for name, values in figures.items()
    }


def main(
    problems: Annotated[int, typer.Option(help="Held-out problems, from the first.")] = 200,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path("weights-quality.json"),
) -> None:
    read = texts(problems)
    truth = list(distributions("none", read))
    settings = {"model": "models/tiny", "problems": problems, "tokens": sum(map(len, truth))}
    run = Recording("bench.weights_quality", out, settings)
    for quantize in FORMATS:
        run.results[quantize] = found = compared(truth, list(distributions(quantize, read)), read)
        print(quantize, ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    run.end()


if __name__ == "__main__":
    typer.run(main)
