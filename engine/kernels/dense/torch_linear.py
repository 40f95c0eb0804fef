"""Products of a few dozen rows with a layer's weights on the CPU, by oneDNN where that is faster.

MKL, by which torch multiplies float32 on the CPU, leaves AVX-512 unused on AMD. oneDNN, which also
comes with torch, uses it, and keeps weights in the order in which it reads them. Its call
costs more, so few rows and small weights stay with MKL. One core of an AMD EPYC (Zen 5), 784
outputs of 256 inputs: 16 rows 69 and 36 µs, 64 rows 229 and 106 µs, 960 rows 3.2 and 1.4 ms.

torch has no public name for these products, so private ones are used. Without them the bundled
model computes 17 to 22 % fewer prompt tokens per second in batches of 256 to 2,048 tokens, and 2 to
11 % fewer output tokens at 16 to 64 sequences. (One such core, torch 2.13, medians of 7 alternating
pairs of runs, CPU time.)
"""

import torch
import torch.nn.functional as F

from engine.model.matrix import Matrix

MIN_PRODUCTS = 2**20
MAX_WEIGHTS = 2**22
"""The largest weights that are held twice, in plain and in oneDNN's order."""
TYPICAL_ROWS = 16
DENSE_ROWS = (6, 24)
"""Numbers of rows between which it is faster to compute all of a few small experts for each
token."""


Place = tuple[int, torch.Size]
"""The address of a weight, and its shape: a weight's first rows may be used alone."""


class Linear:
    """``x @ weight.T`` [rows, outputs] for weights that live as long as this does."""

    def __init__(self) -> None:
        self._packed: dict[Place, tuple[torch.Tensor, torch.Tensor]] = {}
        self._dequantised: dict[Place, torch.Tensor] = {}
        self._has_onednn = bool(torch.backends.mkldnn.is_available())

    def plain(self, weight: Matrix) -> torch.Tensor:
        """``weight`` in the compute dtype; small FP8 weights are dequantised once, large FP8
        weights each time."""
        if weight.fp8.numel() > MAX_WEIGHTS or not weight.num_fp8:
            return weight.dequantised()
        place = _place(weight.fp8)
        if place not in self._dequantised:
            self._dequantised[place] = weight.dequantised()
        return self._dequantised[place]

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _product(x, self._pack(weight)) if self._suits(x, weight) else F.linear(x, weight)

    def add(self, into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``into`` [rows, outputs] + the product, as a new tensor."""
        if not self._suits(x, weight):
            return torch.addmm(into, x, weight.t())
        return self(x, weight).add_(into)

    def suits_experts(self, x: torch.Tensor, gate_up: torch.Tensor, top_k: int) -> bool:
        """True if all experts for all tokens cost less than sorting tokens by expert."""
        few = DENSE_ROWS[0] <= x.shape[0] <= DENSE_ROWS[1] and gate_up.shape[0] <= 4 * top_k
        return few and self._suits(x, gate_up)

    def add_experts(
        self,
        into: torch.Tensor,
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
    ) -> None:
        """``torch_experts.add_experts``, with weight 0 for the experts that were not chosen."""
        (num_experts, width, _), num_tokens = gate_up.shape, x.shape[0]
        gates = _product(x, self._pack(gate_up.flatten(0, 1))).view(num_tokens, num_experts, width)
        hidden = F.silu(gates[..., : width // 2]).mul_(gates[..., width // 2 :])
        share = x.new_zeros(num_tokens, num_experts).scatter_(1, ids, weights)
        hidden.mul_(share.unsqueeze(-1))
        into.add_(_product(hidden.flatten(1), self._pack(down)))

    def _suits(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        return (
            x.shape[0] * weight.numel() >= MIN_PRODUCTS
            and weight.numel() <= MAX_WEIGHTS
            and x.dtype == torch.float32
            and x.is_cpu
            and self._has_onednn
        )

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        """``weight`` in oneDNN's order; [experts, outputs, inputs] become one matrix over all
        inputs."""
        known = self._packed.get(_place(weight))
        if known is None:
            matrix = weight.transpose(0, 1).flatten(1) if weight.dim() == 3 else weight
            packed = torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), TYPICAL_ROWS)
            known = self._packed[_place(weight)] = weight, packed
        return known[1]


def _place(weight: torch.Tensor) -> Place:
    return weight.data_ptr(), weight.shape


def _product(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    # NOTE: oneDNN compiles and keeps code for every number of rows that it gets: 0.2 MiB each.
    num_rows = x.shape[0]
    padding = -num_rows % (8 if num_rows <= 64 else 64)
    if padding:
        x = F.pad(x, (0, 0, 0, padding))
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product[:num_rows] if padding else product
