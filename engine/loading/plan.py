"""The loading plan: the place of each checkpoint tensor in the model, without files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

FLOATS = ("F32", "BF16", "F16")
FP8 = ("F8_E4M3",)


class Target(Protocol):
    """A place in the model for one checkpoint tensor of ``shape``, stored as one of ``stored``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def stored(self) -> tuple[str, ...]: ...

    @property
    def device(self) -> torch.device: ...

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory to which stored bytes of ``dtype`` may be written unchanged; None: use
        ``copy``."""
        ...

    def copy(self, source: torch.Tensor) -> None:
        """Write ``source``, of ``shape``, to this place."""
        ...

    def draw(self, generator: torch.Generator) -> None:
        """Fill with dummy values."""
        ...


@dataclass(frozen=True)
class Interleaving:
    """Order of a tensor's rows: ``num`` runs, each of them ``sizes`` rows of several parts. In
    memory all rows of the first part come first."""

    num: int
    sizes: tuple[int, ...]

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Write the rows of ``source`` [rows, columns] to ``into`` [rows, columns], part by
        part."""
        stored = source.view(self.num, sum(self.sizes), -1).split_with_sizes(self.sizes, 1)
        parts = into.split_with_sizes([self.num * size for size in self.sizes])
        for part, rows in zip(parts, stored, strict=True):
            part.view(rows.shape).copy_(rows)

    def ordered(self, source: torch.Tensor) -> torch.Tensor:
        """The rows of ``source`` [rows, columns] as they are in memory."""
        rows = torch.empty_like(source)
        self.copy(rows, source)
        return rows

    def of_groups(self, group: int) -> "Interleaving":
        """The order of groups of ``group`` rows, which divides each size."""
        return Interleaving(self.num, tuple(size // group for size in self.sizes))


@dataclass(frozen=True)
class Place:
    """A ``Target`` that takes values as they are.

    ``into`` is a view of a (possibly fused) weight; the tensor's rows are brought out of ``order``,
    or else the tensor is broadcast to ``into``, and cast. ``mean`` and ``std`` describe what dummy
    weights look like there.
    """

    into: torch.Tensor
    shape: tuple[int, ...]
    order: Interleaving | None = None
    mean: float = 0.0
    std: float = 0.0
    stored: tuple[str, ...] = FLOATS

    @property
    def device(self) -> torch.device:
        return self.into.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        into = self.into
        same = into.dtype == dtype and into.numel() == torch.Size(self.shape).numel()
        return into if same and self.order is None and into.is_contiguous() else None

    def copy(self, source: torch.Tensor) -> None:
        """Write ``source`` in one pass, without a second copy of it in memory."""
        if self.order:
            self.order.copy(self.into, source)
        else:
            self.into.copy_(source)

    def draw(self, generator: torch.Generator) -> None:
        if self.std:
            self.into.normal_(self.mean, self.std, generator=generator)
        else:
            self.into.fill_(self.mean)


@dataclass
class Plan:
    """All tensors that a model needs, by checkpoint name without its prefix.

    ``split`` lists the parts of tensors that some checkpoints store in parts, with functions that
    make their targets: there are tens of thousands, and most loads need none. A checkpoint holds
    either the whole tensor or every part. ``ignored``: tensors that may be present, and are unused.
    """

    targets: dict[str, Target] = field(default_factory=dict)
    split: dict[str, dict[str, Callable[[], Target]]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

    def add(
        self,
        name: str,
        into: torch.Tensor,
        shape: Iterable[int] | None = None,
        *,
        mean: float = 0.0,
        std: float = 0.0,
    ) -> None:
        """Register one tensor; ``shape`` is ``into``'s unless the checkpoint's differs."""
        self.add_target(name, Place(into, tuple(shape or into.shape), None, mean, std))

    def add_target(self, name: str, target: Target) -> None:
        assert name not in self.targets, name
        self.targets[name] = target

    def add_part(self, whole: str, name: str, target: Callable[[], Target]) -> None:
        """Register ``name`` as a part in which ``whole`` may be stored."""
        assert whole in self.targets, whole
        self.split.setdefault(whole, {})[name] = target
