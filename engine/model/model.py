"""The interface of a model of any family."""

from collections.abc import Generator
from typing import Protocol, TypeVar

import torch

from engine.inputs import Inputs
from engine.kernels.interface import Kernels
from engine.loading.plan import Plan
from engine.model.config import ModelConfig
from engine.model.weights import Weights
from transport.copy.tensors import CacheTensors

T = TypeVar("T")


class Model(Protocol):
    """Weights of one model and its forward pass; stateless, the cache is passed in.

    ``plan`` tells the loader where each checkpoint tensor goes; call ``prepare`` once after they
    are all in. ``num_bytes``: what the weights take. ``weights.mtp`` is the draft layer, or None.
    """

    config: ModelConfig
    plan: Plan
    weights: Weights
    num_bytes: int

    def prepare(self) -> None:
        """Turn stored parameters into the form the forward pass uses, in place."""

    def forward(
        self,
        inputs: Inputs,
        ids: torch.Tensor,
        cache: CacheTensors,
        kernels: Kernels,
        *,
        every_token: bool = False,
    ) -> Generator[None, None, torch.Tensor]:
        """Run ``ids`` [tokens] through all layers -> normed hidden [sampled rows, hidden], or
        [tokens, hidden] with ``every_token``. Yields behind each layer, so that other work can be
        enqueued between them; ``finished`` runs it without.

        Updates the pages and state slots of the rows in ``inputs``.
        """
        ...

    def logits(
        self,
        hidden: torch.Tensor,
        num_ids: int,
        kernels: Kernels,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[rows, hidden] -> float32 logits [rows, num_ids] of the first ``num_ids`` ids; in
        ``out`` where given."""
        ...


def finished(parts: Generator[None, None, T]) -> T:
    """Run all ``parts``. Returns their result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: T = end.value
            return result
