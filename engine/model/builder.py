"""Allocates a model's weights, and registers the place of each checkpoint tensor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import gcd

import torch

from engine.loading.fp8_places import QuantisingPlace, ScalePlace
from engine.loading.plan import FP8 as STORED_FP8
from engine.loading.plan import Interleaving, Place, Plan, Target
from engine.model.int4_experts import Int4Experts
from engine.model.int8_experts import Int8Experts
from engine.model.matrix import FP8, Matrix
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.model.packed_experts import COLUMNS, RUN, IntegerExperts, PackedExperts
from engine.model.quantization import BLOCK, PackedKind, Quantization
from engine.quantized.integer_place import IntegerPlace
from engine.quantized.nvfp4_place import Nvfp4Place, Nvfp4RowsPlace
from engine.quantized.rounding_place import RoundingPlace

SCALES = "_scale_inv"
"""Suffix of the name of a converted tensor's scales."""
PACKED: dict[PackedKind, type[Nvfp4Experts | IntegerExperts]] = {
    "nvfp4": Nvfp4Experts,
    "int4": Int4Experts,
    "int8": Int8Experts,
}


@dataclass(frozen=True)
class Part:
    """Rows of a fused matrix that are one checkpoint tensor, there in another ``order`` if it is
    given."""

    name: str
    rows: int
    order: Interleaving | None = None

    @property
    def run(self) -> int:
        """A length of runs of rows that stay together."""
        return gcd(*self.order.sizes) if self.order else self.rows


@dataclass(frozen=True)
class _Rows:
    """The rows of a matrix for one tensor: values, and their scales if they are in FP8.
    ``rounded``: the values are rounded to NVFP4 at load."""

    values: torch.Tensor
    scales: torch.Tensor | None = None
    rounded: bool = False

    def split(self, sizes: Sequence[int]) -> "Iterator[_Rows]":
        """The rows as runs of the given lengths."""
        values = self.values.split_with_sizes(list(sizes), dim=-2)
        if self.scales is None:
            return (_Rows(own, None, self.rounded) for own in values)
        group = self.values.shape[-2] // self.scales.shape[-2] if sizes else 1
        groups = [size // group for size in sizes]
        return map(_Rows, values, self.scales.split_with_sizes(groups, dim=-2))

    def __getitem__(self, index: int) -> "_Rows":
        scales = None if self.scales is None else self.scales[index]
        return _Rows(self.values[index], scales, self.rounded)


class WeightBuilder:
    """Allocates weights in the compute dtype ``dtype``, or in FP8 as ``quantization`` says."""

    def __init__(
        self, plan: Plan, quantization: Quantization, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.plan, self._quantization = plan, quantization
        self._dtype, self._device = dtype, device
        self.num_bytes = 0

    def vector(self, name: str, size: int, *, mean: float = 0.0, std: float = 0.0) -> torch.Tensor:
        """A vector, float32 [size]."""
        vector = self._empty(size, dtype=torch.float32)
        self.plan.add(name, vector, mean=mean, std=std)
        return vector

    def norms(self, dim: int, *parts: tuple[str, int], mean: float = 0.0) -> torch.Tensor:
        """Norm weights, float32 [rows, dim]: each named vector [dim] repeated as often as given."""
        rows = self._empty(sum(num for _, num in parts), dim, dtype=torch.float32)
        for (name, _), own in zip(parts, rows.split([num for _, num in parts]), strict=True):
            self.plan.add(name, own, (dim,), mean=mean)
        return rows

    def tensor(self, name: str, *shape: int, std: float) -> torch.Tensor:
        """A tensor that is never converted."""
        tensor = self._empty(*shape)
        self.plan.add(name, tensor, std=std)
        return tensor

    def nothing(self, rows: int) -> Matrix:
        """A matrix without columns, which no checkpoint tensor fills."""
        return Matrix.of(self._empty(rows, 0))

    def biases(self, *parts: tuple[str, int]) -> torch.Tensor:
        """The biases of a fused matrix, in the compute dtype [rows of all parts]."""
        bias = self._empty(sum(num for _, num in parts))
        for (name, num), own in zip(parts, bias.split([num for _, num in parts]), strict=True):
            self.plan.add(name, own, (num,), std=0.02)
        return bias

    def conv(self, name: str, channels: int, kernel: int) -> torch.Tensor:
        """A conv's weights [channels, kernel], stored with a dimension of 1 in between."""
        taps = self._empty(channels, kernel)
        self.plan.add(name, taps.unsqueeze(1), std=kernel**-0.5)
        return taps

    def matrix(self, columns: int, *parts: Part, aligned: bool = False) -> Matrix:
        """One matrix whose rows are several checkpoint tensors.

        ``aligned``: plain rows of zeros fill it up to a multiple of 16. Without that, a product of
        an odd width falls back to a kernel seven times slower (cuBLAS on an H200, 1,281 rows).
        """
        converted = [part for part in parts if self._quantization.converts(part.name)]
        if not converted and (packed := self._packable(columns, parts)):
            return self._packed_rows(columns, packed, parts[len(packed) :], aligned=aligned)
        plain = [part for part in parts if part not in converted]
        if [*converted, *plain] != [*parts]:
            raise ValueError(
                f"quantization_config: {converted[0].name} is converted and {plain[0].name} is "
                f"not; of {', '.join(part.name for part in parts)} only the first ones may be"
            )
        num_rows = sum(part.rows for part in parts)
        padding = -num_rows % 16 if aligned else 0
        num_plain = sum(part.rows for part in plain)
        matrix = self._allocate(converted, num_plain + padding, columns)
        matrix.plain[num_plain:].zero_()
        converted_rows = _Rows(matrix.fp8, matrix.scales).split([part.rows for part in converted])
        plain_rows = _Rows(matrix.plain[:num_plain]).split([part.rows for part in plain])
        for part, rows in zip(parts, [*converted_rows, *plain_rows], strict=True):
            rounded = rows.scales is None and self._quantization.rounds(part.name)
            own = replace(rows, rounded=rounded)
            for suffix, target in self._targets(own, part).items():
                self.plan.add_target(part.name + suffix, target)
        return matrix

    def lm_head(self, columns: int, part: Part) -> Matrix:
        """The matrix of ``lm_head``; in FP8, rows of zeros fill it up to a multiple of 128."""
        if not self._quantization.fp8_lm_head:
            return self.matrix(columns, part)
        matrix = self._allocate([Part(part.name, part.rows + -part.rows % BLOCK)], 0, columns)
        matrix.fp8[part.rows :].zero_()
        values = Place(matrix.fp8[: part.rows], (part.rows, columns), None, 0.0, columns**-0.5)
        blocks = torch.arange(len(matrix.scales), device=self._device)
        scales = ScalePlace(matrix.scales, (*matrix.scales.shape,), blocks)
        self.plan.add_target(part.name, QuantisingPlace(values, scales, self._dtype))
        return matrix

    def _packable(self, columns: int, parts: Sequence[Part]) -> Sequence[Part]:
        """The first of a matrix's ``parts``, if they are packed in one format in memory.
        Others that the checkpoint stores so become plain."""
        kind = self._quantization.kind(parts[0].name)

        def packs(part: Part) -> bool:
            fits = part.rows % RUN == columns % COLUMNS == 0 and not part.name.startswith("mtp.")
            same = self._quantization.kind(part.name) == kind
            return fits and same and self._quantization.keeps_packed(part.name)

        return list(takewhile(packs, parts))

    def _packed_rows(
        self, columns: int, packed: Sequence[Part], plain: Sequence[Part], *, aligned: bool
    ) -> Matrix:
        """A matrix whose rows are packed but for those of ``plain``, which come last."""
        num_packed = sum(part.rows for part in packed)
        runs = (RUN,) * (num_packed // RUN)
        kind = PACKED[self._quantization.kind(packed[0].name)]
        rows = kind.empty(1, runs, columns, self._device)
        self.num_bytes += rows.nbytes
        first = 0
        for part in packed:
            place: Target
            if isinstance(rows, IntegerExperts):
                place = IntegerPlace(rows, 0, first, part.rows, part.order)
            else:
                rounds = self._quantization.rounds(part.name)
                place = Nvfp4RowsPlace(rows, first, part.rows, part.order, rounds)
            self.plan.add_target(part.name, place)
            first += part.rows
        padding = -sum(part.rows for part in (*packed, *plain)) % 16 if aligned else 0
        others = self._empty(sum(part.rows for part in plain) + padding, columns)
        others[len(others) - padding :].zero_()
        sizes = [part.rows for part in plain]
        of_plain = _Rows(others[: len(others) - padding]).split(sizes)
        for part, own in zip(plain, of_plain, strict=True):
            own = replace(own, rounded=self._quantization.rounds(part.name))
            self.plan.add_target(part.name, self._targets(own, part)[""])
        return Matrix.of_packed(rows, others)

    def experts(
        self, columns: int, num: int, prefix: str, whole: str, projections: Sequence[Part]
    ) -> Matrix | PackedExperts:
        """[num, rows of all ``projections``, columns], stored as ``prefix`` + ``whole``, or as
        ``prefix`` + "I.NAME.weight" of expert I for each projection."""
        every = Part(prefix + whole, sum(part.rows for part in projections))
        if self._quantization.keeps_packed(every.name):
            kind = PACKED[self._quantization.kind(every.name)]
            if issubclass(kind, IntegerExperts):
                return self._integers(kind, columns, num, prefix, every, projections)
            return self._packed(columns, num, prefix, every, projections)
        rounds = self._quantization.rounds(every.name)
        fp8 = [self._quantization.converts(f"{prefix}0.{part.name}.weight") for part in projections]
        if len(set(fp8)) > 1:
            raise ValueError(f"quantization_config: {prefix} is converted in part")
        converted = projections if fp8[0] and not rounds else []
        matrix = self._allocate(converted, 0 if converted else every.rows, columns, num)
        runs = tuple(part.rows for part in projections)
        rows = _Rows(matrix.plain, rounded=rounds)
        if converted:
            rows = _Rows(matrix.fp8, matrix.scales)
        whole_targets = self._targets(rows, every, runs)
        for suffix, target in whole_targets.items():
            self.plan.add_target(every.name + suffix, target)
        split = list(rows.split(runs))
        for suffix in whole_targets:
            for part, own in zip(projections, split, strict=True):
                for expert in range(num):
                    self.plan.add_part(
                        every.name + suffix,
                        f"{prefix}{expert}.{part.name}.weight{suffix}",
                        partial(self._target, own, expert, part, suffix),
                    )
        return matrix

    def _packed(
        self, columns: int, num: int, prefix: str, every: Part, projections: Sequence[Part]
    ) -> Nvfp4Experts:
        """Experts in NVFP4, with the places of the tensors that ``experts`` names."""
        runs = tuple(part.rows for part in projections)
        experts = Nvfp4Experts.empty(num, runs, columns, self._device)
        self.num_bytes += experts.nbytes
        rounds = self._quantization.rounds(every.name)
        self.plan.add_target(every.name, Nvfp4Place(experts, rounds=rounds))
        for run, part in enumerate(projections):
            for expert in range(num):
                self.plan.add_part(
                    every.name,
                    f"{prefix}{expert}.{part.name}.weight",
                    partial(Nvfp4Place, experts, expert, run, rounds=rounds),
                )
        return experts

    def _integers(
        self,
        kind: type[IntegerExperts],
        columns: int,
        num: int,
        prefix: str,
        every: Part,
        projections: Sequence[Part],
    ) -> PackedExperts:
        """Experts in int4 or int8, with the places of the tensors that ``experts`` names."""
        runs = tuple(part.rows for part in projections)
        experts = kind.empty(num, runs, columns, self._device)
        self.num_bytes += experts.nbytes
        self.plan.add_target(every.name, IntegerPlace(experts, None, 0, every.rows))
        for run, part in enumerate(projections):
            for expert in range(num):
                self.plan.add_part(
                    every.name,
                    f"{prefix}{expert}.{part.name}.weight",
                    partial(IntegerPlace, experts, expert, sum(runs[:run]), part.rows),
                )
        return experts

    def _target(self, rows: _Rows, expert: int, part: Part, suffix: str) -> Target:
        return self._targets(rows[expert], part)[suffix]

    def _allocate(
        self, converted: Sequence[Part], num_plain: int, columns: int, *lead: int
    ) -> Matrix:
        lead = tuple(lead)
        num_fp8 = sum(part.rows for part in converted)
        group = gcd(BLOCK, *(part.run for part in converted))
        return Matrix(
            fp8=self._empty(*lead, num_fp8, columns, dtype=FP8),
            scales=self._empty(*lead, num_fp8 // group, -(-columns // BLOCK), dtype=torch.float32),
            plain=self._empty(*lead, num_plain, columns),
        )

    def _targets(self, rows: _Rows, part: Part, runs: tuple[int, ...] = ()) -> dict[str, Target]:
        """The targets of a part, by the suffix of the tensor's name. ``runs``: rows of the matrices
        that it consists of, if there are several."""
        std = rows.values.shape[-1] ** -0.5
        values = Place(rows.values, tuple(rows.values.shape), part.order, 0.0, std)
        if rows.rounded:
            return {"": RoundingPlace(values, runs or (part.rows,))}
        if rows.scales is None:
            return {"": values}
        *lead, num_rows, _ = rows.values.shape
        stored = (*lead, -(-num_rows // BLOCK), rows.scales.shape[-1])
        num_groups = rows.scales.shape[-2]
        group = num_rows // num_groups
        order = part.order.of_groups(group) if part.order else None
        fp8 = Place(values.into, values.shape, part.order, 0.0, std, STORED_FP8)
        at_load = self._quantization.source == "load"
        if group == BLOCK and not at_load:
            # In stored order, without indices: these would be some 60,000 small tensors on the GPU.
            return {"": fp8, SCALES: Place(rows.scales, stored, order)}
        blocks = torch.arange(num_groups, device=self._device) * group // BLOCK
        scales = ScalePlace(rows.scales, stored, blocks, order)
        if at_load:
            return {"": QuantisingPlace(values, scales, self._dtype)}
        return {"": fp8, SCALES: scales}

    def _empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype or self._dtype, device=self._device)
        self.num_bytes += tensor.nbytes
        return tensor
