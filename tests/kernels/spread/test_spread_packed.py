"""Spread layers with packed experts against the local step's kernels, bit for bit."""

import pytest
import torch

from engine.kernels.dense.triton_add_norm import add_rms_norm
from engine.kernels.experts.triton_experts_nvfp4 import Tiles, experts_nvfp4
from engine.model.int4_experts import Int4Experts
from engine.model.int8_experts import Int8Experts
from engine.model.matrix import Matrix
from engine.model.nvfp4_experts import Nvfp4Experts
from engine.model.packed_experts import PackedExperts
from engine.spread.triton_collect import Collected
from engine.spread.triton_packed_experts import packed_experts
from tests.kernels.spread import spread_group
from tests.kernels.spread.spread_group import EPS, NUM_EXPERTS, Group, Member

HIDDEN, DIM = 256, 128
TILES = Tiles(64, 4, 2), Tiles(64, 2, 2)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread_group, "HIDDEN", HIDDEN)
    monkeypatch.setattr(spread_group, "DIM", DIM)


class PackedGroup(Group):
    """Members whose experts are packed."""

    def __init__(self, kind: type[PackedExperts], *, shared: str, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.packed_gate_up = self._packed(kind, NUM_EXPERTS, 2 * DIM, HIDDEN, DIM)
        self.packed_down = self._packed(kind, NUM_EXPERTS, HIDDEN, DIM, HIDDEN)
        if shared == "fp8":
            self.shared_down = Matrix.converted(self.shared_down.plain)
        elif shared == "packed":
            plain = torch.empty(0, DIM, dtype=torch.bfloat16, device=self.device)
            packed = self._packed(kind, 1, HIDDEN, DIM, HIDDEN)
            self.shared_down = Matrix.of_packed(packed, plain)

    def _packed(
        self, kind: type[PackedExperts], num: int, rows: int, columns: int, run: int
    ) -> PackedExperts:
        made = kind.empty(num, (run,) * (rows // run), columns, self.device)
        made.draw(torch.Generator(self.device).manual_seed(rows))
        return made

    def local(self, member: Member) -> tuple[torch.Tensor, torch.Tensor]:
        n = int(member.num_live)
        y = experts_nvfp4(
            member.x, member.ids, member.weights, self.packed_gate_up, self.packed_down,
            (member.shared, self.shared_down),
        )  # fmt: skip
        hidden, x = add_rms_norm(member.hidden.clone(), y, self.norm, EPS)
        return hidden[:n], x[:n]

    def experts(self, member: Member, rows: Collected) -> None:
        shared = None if member.lends else (member.shared, self.shared_down)
        packed_experts(rows, self.packed_gate_up, self.packed_down, shared, member.exchange, TILES)


@pytest.mark.parametrize(
    ("kind", "shared", "lives", "rows_each", "lenders"),
    [
        (Nvfp4Experts, "plain", [1], 1, 0),
        (Nvfp4Experts, "fp8", [3, 4], 4, 0),
        (Nvfp4Experts, "packed", [9, 20], 20, 1),
        (Int4Experts, "packed", [0, 4, 1], 4, 0),
        (Int8Experts, "plain", [2, 3], 3, 1),
    ],
)
def test_a_spread_layer_has_the_bits_of_the_local_one(
    device: torch.device,
    kind: type[PackedExperts],
    shared: str,
    lives: list[int],
    rows_each: int,
    lenders: int,
) -> None:
    group = PackedGroup(
        kind, shared=shared, device=device, lives=lives, rows_each=rows_each, num_lenders=lenders
    )
    group.begin_step(1, range(lenders))
    group.draw_layer()
    truth = [group.local(member) for member in group.members]
    for found, expected in zip(group.layer(0), truth, strict=True):
        assert expected[0].isfinite().all()
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    assert all(member.header == [0] * 4 for member in group.members)
