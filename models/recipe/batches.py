"""Training batches, made on the fly: batch number N is a pure function of (seed, N)."""

from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from models.recipe.architecture import ENDOFTEXT
from models.recipe.conversations import sample

# (rows at scale 1, row length, number of exchanges to choose from). Every fourth batch is long.
SHORT = (512, 128, (1,))
LONG = (160, 384, (1, 2, 2, 3, 4))


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
        rows, length, turns = LONG if step % 4 == 3 else SHORT
        rows = max(1, round(rows * self.scale))
        ids = torch.full((rows, length), ENDOFTEXT)
        weights = torch.zeros(rows, length)
        for row in range(rows):
            text = self._fitting(rng, rng.choice(turns), length)
            ids[row, : len(text[0])] = torch.tensor(text[0])
            weights[row, : len(text[1])] = torch.tensor(text[1])
        return ids, weights

    def _fitting(self, rng: Random, turns: int, length: int) -> tuple[list[int], list[float]]:
        while True:
            ids, weights = sample(rng, turns, self._encode)
            if len(ids) <= length:
                return ids, weights

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids
