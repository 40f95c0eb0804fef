"""The members of a spread group on one device, with random rows for one layer at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.kernels.dense.triton_add_norm import add_rms_norm
from engine.kernels.experts.triton_experts import Tiles
from engine.kernels.experts.triton_experts import experts as local_experts
from engine.model.matrix import Matrix
from engine.spread.memory import HEADER_BYTES, Exchange, ExchangeLayout
from engine.spread.shapes import group_size
from engine.spread.triton_agree import agree, offer
from engine.spread.triton_collect import Collected, collect
from engine.spread.triton_experts import experts
from engine.spread.triton_push import push
from engine.spread.triton_take_up import Returned, take_up

NUM_EXPERTS, TOP_K, HIDDEN, DIM, MAX_ROWS = 12, 4, 64, 32, 24
TILES = Tiles(16, 32, 2, 4), Tiles(32, 16, 2, 4)
EPS = 1e-6


@dataclass
class Member:
    """Its memory, and what it feeds to a layer."""

    memory: torch.Tensor
    exchange: Exchange
    hidden: torch.Tensor
    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    shared: torch.Tensor
    num_live: torch.Tensor
    lends: bool = False
    rows: Collected | None = None
    """Of the layer under way."""

    @property
    def live(self) -> torch.Tensor:
        return self.ids[:, 0].long()

    @property
    def header(self) -> list[int]:
        return self.exchange.header[:4].tolist()


class Group:
    """Members with ``lives`` rows each, all in the bucket ``rows_each``; their kernels have room
    for the members of the smallest size of groups."""

    def __init__(
        self, device: torch.device, lives: list[int], rows_each: int, num_lenders: int = 0
    ) -> None:
        self.device, self.rows_each = device, rows_each
        self.most_members = group_size(len(lives))
        self.layout = ExchangeLayout(MAX_ROWS, TOP_K, HIDDEN)
        self.gate_up = Matrix.of(self._draw(NUM_EXPERTS, 2 * DIM, HIDDEN))
        self.down = Matrix.of(self._draw(NUM_EXPERTS, HIDDEN, DIM))
        self.shared_down = Matrix.of(self._draw(HIDDEN, DIM))
        self.norm = 1 + self._draw(HIDDEN).float()
        self.members = [self._member(live) for live in lives]
        self.lenders = [self._lender() for _ in range(num_lenders)]
        self.form(1)

    def form(self, generation: int) -> None:
        members = [*self.members, *self.lenders]
        self.most_members = group_size(len(self.members))
        addresses = [member.memory.data_ptr() for member in members]
        for place, member in enumerate(members):
            member.exchange.join(
                generation, addresses, place, num_lenders=len(self.lenders), limit_s=1.0
            )

    def draw_layer(self) -> None:
        """Other rows for every member."""
        self.members = [
            replace(
                self._member(int(member.num_live)), exchange=member.exchange, memory=member.memory
            )
            for member in self.members
        ]

    def local(self, member: Member) -> tuple[torch.Tensor, torch.Tensor]:
        """What the local step makes of a member's live rows: (hidden, its norm)."""
        n = int(member.num_live)
        y = local_experts(
            member.x, member.ids, member.weights, self.gate_up, self.down,
            (member.shared, self.shared_down), TILES,
        )  # fmt: skip
        hidden, x = add_rms_norm(member.hidden.clone(), y, self.norm, EPS)
        return hidden[:n], x[:n]

    def begin_step(self, flag: int, lenders: Sequence[int] = ()) -> None:
        """The step's first kernels, as each member runs them before its first layer; of the lenders
        these offer themselves in time."""
        for member in [*self.members, *self.lenders]:
            member.exchange.begin_step(flag)
        for i in lenders:
            offer(self.lenders[i].exchange)
        for member in self.members:
            agree(member.exchange)
        for i, lender in enumerate(self.lenders):
            if i not in lenders:
                offer(lender.exchange)
            agree(lender.exchange)

    def push(self, member: Member, layer: int) -> None:
        member.rows = self.no_rows(member)
        push(member.x, member.ids, member.weights, member.exchange, layer, member.rows.owned)

    def collect(self, member: Member, layer: int) -> Collected:
        """What came for ``member``, which has pushed its rows."""
        assert member.rows is not None
        collect(member.rows, member.exchange, layer)
        return member.rows

    def no_rows(self, member: Member) -> Collected:
        num, dtype = self.most_members, member.x.dtype
        return Collected.empty(member.exchange, num, self.rows_each, NUM_EXPERTS, dtype)

    def experts(self, member: Member, rows: Collected) -> None:
        shared = None if member.lends else (member.shared, self.shared_down)
        experts(rows, self.gate_up, self.down, shared, member.exchange, TILES)

    def take_up(self, member: Member, rows: Collected) -> tuple[torch.Tensor, torch.Tensor]:
        returned = Returned(member.exchange, member.live, member.ids, rows.owners)
        hidden, x = take_up(member.hidden.clone(), returned, self.norm, EPS)
        n = int(member.num_live)
        return hidden[:n], x[:n]

    def layer(self, layer: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        for member in [*self.members, *self.lenders]:
            self.push(member, layer)
        collected = []
        for member in [*self.members, *self.lenders]:
            collected.append(self.collect(member, layer))
            self.experts(member, collected[-1])
        pairs = zip(self.members, collected, strict=False)
        return [self.take_up(member, rows) for member, rows in pairs]

    def _lender(self) -> Member:
        lender = self._member(0)
        x, ids, weights = lender.x[:1], lender.ids[:1], lender.weights[:1]
        return replace(lender, x=x, ids=ids, weights=weights, lends=True)

    def _member(self, live: int) -> Member:
        n = self.rows_each
        memory = aligned(self.layout.size_bytes, self.device)
        ids = torch.rand(n, NUM_EXPERTS).argsort(1)[:, :TOP_K].int()
        ids[live:] = -1
        return Member(
            memory,
            Exchange(self.layout, memory),
            self._draw(n, HIDDEN),
            self._draw(n, HIDDEN),
            ids.to(self.device),
            torch.rand(n, TOP_K).to(self.device),
            self._draw(n, DIM),
            torch.tensor([live], dtype=torch.int32, device=self.device),
        )

    def _draw(self, *shape: int) -> torch.Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.25).to(self.device, torch.bfloat16)


def aligned(size_bytes: int, device: torch.device) -> torch.Tensor:
    memory = torch.empty(size_bytes + HEADER_BYTES, dtype=torch.uint8, device=device)
    return memory[-memory.data_ptr() % HEADER_BYTES :][:size_bytes]


class Memory:
    """An OwnMemory that no other process opens; its handle is its address."""

    kind = "shm"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def handle(self) -> str:
        return str(self._memory.data_ptr())

    @property
    def size_bytes(self) -> int:
        return len(self._memory)

    def allocate(self, size_bytes: int) -> torch.Tensor:
        self._memory = aligned(size_bytes, self._device)
        return self._memory

    def lost(self) -> str:
        return ""

    def close(self) -> None:
        pass
