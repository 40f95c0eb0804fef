"""Where each checkpoint tensor goes: a model's side of loading, free of files."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Target:
    """A place in the model for one checkpoint tensor of ``shape``.

    ``into`` is a view of a (possibly fused) weight; the tensor is reshaped to ``view`` (its own
    shape if None), broadcast to ``into`` and cast. ``mean`` and ``std`` describe what dummy
    weights look like there.
    """

    into: torch.Tensor
    shape: tuple[int, ...]
    view: tuple[int, ...] | None = None
    mean: float = 0.0
    std: float = 0.0

    def copy(self, source: torch.Tensor) -> None:
        """Copy ``source`` of ``shape`` in, one pass, no second copy of it in memory."""
        self.into.copy_(source.view(self.view) if self.view else source)

    def draw(self, generator: torch.Generator) -> None:
        """Fill with dummy values."""
        if self.std:
            self.into.normal_(self.mean, self.std, generator=generator)
        else:
            self.into.fill_(self.mean)


@dataclass
class Plan:
    """All tensors a model needs, by checkpoint name without its prefix.

    ``split`` lists, for a tensor that some checkpoints store in parts, the names of the parts;
    a checkpoint holds either the whole or every part. ``ignored`` names may be there or not.
    """

    targets: dict[str, Target] = field(default_factory=dict)
    split: dict[str, dict[str, Target]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def add(
        self,
        name: str,
        into: torch.Tensor,
        shape: Iterable[int] | None = None,
        *,
        view: tuple[int, ...] | None = None,
        mean: float = 0.0,
        std: float = 0.0,
    ) -> None:
        """Register one tensor; ``shape`` is ``into``'s unless the checkpoint's differs."""
        assert name not in self.targets, name
        self.targets[name] = Target(into, tuple(shape or into.shape), view, mean, std)

    def add_split(self, name: str, parts: dict[str, torch.Tensor]) -> None:
        """Let ``name`` also arrive as ``parts``."""
        assert name in self.targets, name
        self.split[name] = {part: Target(into, tuple(into.shape)) for part, into in parts.items()}
