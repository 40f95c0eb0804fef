"""Training batches, made on the fly: batch number N is a pure function of (seed, N)."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from models.recipe.architecture import ENDOFTEXT
from models.recipe.mixture import Sample, plain_sample, tool_sample


@dataclass(frozen=True)
class Shape:
    """One kind of batch: rows at scale 1, tokens in a row, numbers of exchanges to choose from."""

    rows: int
    length: int
    turns: tuple[int, ...]
    sample: Sample


SHORT = Shape(512, 128, (1,), plain_sample)
LONG = Shape(144, 448, (1, 2, 3, 4, 5), plain_sample)
TOOLS = Shape(144, 448, (1,), tool_sample)
LONG_TOOLS = Shape(84, 768, (1,), tool_sample)
CYCLE = (SHORT, TOOLS, SHORT, LONG_TOOLS, LONG, TOOLS)


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """`(ids, weights)` of [rows, length]; the weights belong to the token at their place."""

    def __init__(self, tokenizer: Path, seed: str, steps: int, scale: float = 1.0) -> None:
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.seed = seed
        self.steps = steps
        self.scale = scale

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if step >= self.steps:
            raise IndexError(step)
        rng = Random(f"{self.seed}/{step}")
        shape = CYCLE[step % len(CYCLE)]
        rows = max(1, round(shape.rows * self.scale))
        ids = torch.full((rows, shape.length), ENDOFTEXT)
        weights = torch.zeros(rows, shape.length)
        for row in range(rows):
            text = self._fitting(rng, shape)
            ids[row, : len(text[0])] = torch.tensor(text[0])
            weights[row, : len(text[1])] = torch.tensor(text[1])
        return ids, weights

    def _fitting(self, rng: Random, shape: Shape) -> tuple[list[int], list[float]]:
        while True:
            ids, weights = shape.sample(rng, rng.choice(shape.turns), self._encode)
            if len(ids) <= shape.length:
                return ids, weights

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids
