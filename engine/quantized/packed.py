"""Finds the quantised matrices among a checkpoint's tensors, and puts each together when its parts
arrive."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import CheckpointError
from engine.loading.checkpoint import Entry
from engine.loading.plan import Plan, Target
from engine.model.quantization import PREFIX, PackedKind, PackedNames, Quantization
from engine.quantized.format import Format, Part, Stored, require
from engine.quantized.integer_place import IntegerPlace
from engine.quantized.integers import Grouped
from engine.quantized.nvfp4 import Nvfp4
from engine.quantized.nvfp4_place import Nvfp4Place, Nvfp4RowsPlace


@dataclass(frozen=True)
class Packed:
    """A matrix stored in ``format``: the name and ``shape`` that it has in a checkpoint that is not
    quantised, and its tensors by ``Part.key``."""

    name: str
    shape: tuple[int, ...]
    format: Format
    entries: dict[str, Entry]
    dtype: str = "F32"
    """What its values are read as."""

    @property
    def short_name(self) -> str:
        return PREFIX.sub("", self.name)

    @property
    def file(self) -> Path:
        return next(iter(self.entries.values())).file

    def targets(self, into: Target) -> Iterator[tuple[Entry, Target]]:
        """The places of this matrix's tensors; when the last one is copied, ``into`` is filled."""
        matrix = _Assembly(self, into)
        for key, entry in self.entries.items():
            yield entry, _PartPlace(matrix, key, entry)


def matrices(entries: Sequence[Entry], stored: Stored) -> list[Entry | Packed]:
    """The tensors of a checkpoint with the parts of each quantised matrix as one ``Packed``, and
    without tensors that are not used.

    Raises CheckpointError for a matrix that lacks a part, or whose parts' shapes do not fit.
    """
    if not stored.formats:
        return list(entries)
    by_name = {entry.name: entry for entry in entries}
    packed: dict[str, Packed] = {}
    parts: set[str] = set()
    for entry in entries:
        if (found := _packed(entry, by_name, stored.formats)) is not None:
            packed[entry.name] = found
            parts.update(part.name for part in found.entries.values())
    return [
        packed.get(entry.name, entry)
        for entry in entries
        if entry.name in packed
        or (entry.name not in parts and not entry.name.endswith(stored.ignored))
    ]


def packed_names(plan: Plan, entries: Sequence[Entry], stored: Stored) -> PackedNames:
    """The matrices, and the experts, whole or one by one, that are stored in NVFP4, int4 or int8,
    as kernels compute with them. Raises as ``matrices``."""
    found: dict[PackedKind, set[str]] = {"nvfp4": set(), "int4": set(), "int8": set()}
    for each in matrices(entries, stored):
        if isinstance(each, Packed) and (kind := _kind(each.format)) is not None:
            found[kind].add(each.short_name)
    return PackedNames(
        (whole, kind)
        for kind, names in found.items()
        for whole in plan.targets
        if whole in names or (whole in plan.split and names.issuperset(plan.split[whole]))
    )


def drawn_names(plan: Plan, stored: Stored) -> PackedNames:
    """``packed_names`` of dummy weights: all that a checkpoint in this form may store packed, as
    most do."""
    official = Quantization.at_load()
    kinds = [kind for form in stored.formats if (kind := _kind(form)) is not None]
    return PackedNames(
        (name, kinds[0])
        for name, target in plan.targets.items()
        if kinds and (name in plan.split or len(target.shape) == 2) and official.converts(name)
    )


def _kind(form: Format) -> PackedKind | None:
    if isinstance(form, Grouped):
        return form.kind
    return "nvfp4" if isinstance(form, Nvfp4) else None


def _packed(entry: Entry, by_name: dict[str, Entry], formats: Iterable[Format]) -> Packed | None:
    """The matrix whose values ``entry`` holds; None for an entry that is no matrix's values."""
    refused: CheckpointError | None = None
    for form in formats:
        first, *others = form.parts
        if not entry.name.endswith(first.suffix) or entry.dtype not in first.dtypes:
            continue
        stem = entry.name.removesuffix(first.suffix)
        try:
            found = {first.key: entry} | _others(stem, others, by_name)
            shape = form.shape({key: part.shape for key, part in found.items()})
        except ValueError as error:
            refused = refused or CheckpointError(f"tensor {entry.name} in {entry.file}: {error}")
            continue
        return Packed(stem + form.whole, shape, form, found)
    if refused is not None:
        raise refused
    return None


def _others(stem: str, parts: Iterable[Part], by_name: dict[str, Entry]) -> dict[str, Entry]:
    """The parts of a matrix that are there; a ValueError names one that is missing or wrong."""
    found = {}
    for part in parts:
        name = stem + part.suffix
        if (own := by_name.get(name)) is not None:
            require(
                own.dtype in part.dtypes,
                f"{name} has dtype {own.dtype}, expected {' or '.join(part.dtypes)}",
            )
            found[part.key] = own
        else:
            require(part.optional, f"it needs the tensor {name}, which is missing")
    return found


class _Assembly:
    """The parts of one matrix that have arrived."""

    def __init__(self, packed: Packed, into: Target) -> None:
        self.packed, self.into = packed, into
        self._arrived: dict[str, torch.Tensor] = {}

    def add(self, key: str, part: torch.Tensor) -> None:
        self._arrived[key] = part
        if len(self._arrived) < len(self.packed.entries):
            return
        form = self.packed.format
        try:
            if isinstance(self.into, Nvfp4Place | Nvfp4RowsPlace) and isinstance(form, Nvfp4):
                self.into.copy_packed(*form.packed(self._arrived))
            elif isinstance(self.into, IntegerPlace) and isinstance(form, Grouped):
                self.into.copy_integers(*form.integers(self._arrived))
            else:
                self.into.copy(form.values(self._arrived))
        except ValueError as error:
            raise CheckpointError(
                f"tensor {self.packed.name} in {self.packed.file}: {error}"
            ) from error
        if part.is_cuda:
            # NOTE: earlier parts may be freed here, and copies to the GPU on other streams could
            # overwrite them while they are still being read.
            torch.cuda.current_stream(part.device).synchronize()
        self._arrived.clear()


@dataclass(frozen=True)
class _PartPlace:
    """A ``Target`` for one tensor of a matrix."""

    matrix: _Assembly
    key: str
    entry: Entry

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    @property
    def stored(self) -> tuple[str, ...]:
        return (self.entry.dtype,)

    @property
    def device(self) -> torch.device:
        return self.matrix.into.device

    def direct(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None

    def copy(self, source: torch.Tensor) -> None:
        self.matrix.add(self.key, source)

    def draw(self, generator: torch.Generator) -> None:
        raise AssertionError("dummy weights have no parts")
