"""Chunks that rows of a step have in common: what is planned, and that no bit depends on it."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Row
from engine.graphs import shared_pages
from engine.graphs.shared_pages import SharedPages
from engine.kernels.attention.triton_attention_decode import AttentionWorkspace, attention_decode
from engine.kernels.shared_reads import (
    CHUNK_BITS,
    MAX_CHUNKS,
    MIN_BLOCKS,
    Reading,
    ReadPlan,
    blocks_each,
    num_planned,
    rows_of_tile,
)
from tests.kernels.closeness import relative_error
from transport.wire.layout import CacheLayout

PAGE, BLOCK, HEADS, KV_HEADS, DIM = 16, 16, 8, 2, 32
TILE_ROWS = rows_of_tile(HEADS, KV_HEADS)


@dataclass
class Tree:
    """Sequences of which each begins with the pages of an earlier one."""

    tables: list[list[int]] = field(default_factory=list)
    num_pages: int = 0

    def add(self, parent: int, shared: int, own: int) -> None:
        begin = self.tables[parent % len(self.tables)][:shared] if self.tables else []
        self.tables.append([*begin, *range(self.num_pages, self.num_pages + own)])
        self.num_pages += own


trees = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 200), st.integers(1, 70)), min_size=1, max_size=9
)


def planned(tree: Tree, rows_each: int, short: int) -> tuple[ReadPlan, list[Reading]]:
    readings = [
        Reading(i * rows_each, rows_each, table, max(1, len(table) * PAGE - short))
        for i, table in enumerate(tree.tables)
    ]
    plan = ReadPlan(len(readings) * rows_each, TILE_ROWS, PAGE, BLOCK)
    plan.share(readings)
    return plan, readings


@given(trees, st.integers(1, 4), st.integers(0, 40))
@settings(deadline=None)
def test_each_chunk_of_each_row_is_read_once(
    parts: list[tuple[int, int, int]], rows_each: int, short: int
) -> None:
    tree = Tree()
    for part in parts:
        tree.add(*part)
    plan, readings = planned(tree, rows_each, short)
    tables = [reading.table for reading in readings for _ in reading.rows]
    read = [set[int]() for _ in tables]
    for item in np.concatenate(plan.items).tolist() if plan.items else []:
        tile, chunk = item >> CHUNK_BITS, item & ((1 << CHUNK_BITS) - 1)
        blocks, *members = plan.tiles[tile]
        low, high = (-(-place * blocks * BLOCK // PAGE) for place in (chunk, chunk + 1))
        rows = [row for row in members if row >= 0]
        assert len(rows) > 1 or TILE_ROWS == 1
        assert len({tuple(tables[row][low:high]) for row in rows}) == 1
        for row in rows:
            assert chunk not in read[row]
            assert plan.own[row, 1] == blocks
            read[row].add(chunk)
    for row, chunks in enumerate(read):
        assert chunks == set(range(plan.own[row, 0])), "the row reads those behind them itself"


@given(st.integers(1, 1 << 22))
def test_chunks_are_few_and_of_few_lengths(num_tokens: int) -> None:
    blocks = blocks_each(num_tokens, 64)
    assert blocks >= MIN_BLOCKS
    assert -(-num_tokens // (64 * blocks)) <= MAX_CHUNKS
    assert bin(blocks).count("1") == 1 or bin(blocks // 3).count("1") == 1
    assert blocks == MIN_BLOCKS or num_tokens > 64 * blocks * MAX_CHUNKS // 2


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "rows"), [(16, 2, 4), (32, 8, 8), (28, 4, 4), (8, 8, 32)]
)
def test_rows_of_a_tile(num_heads: int, num_kv_heads: int, rows: int) -> None:
    assert rows_of_tile(num_heads, num_kv_heads) == rows


def test_all_chunks_may_be_planned() -> None:
    assert num_planned(1, PAGE, 2 * BLOCK) == 8
    assert num_planned(10**6, PAGE, 2 * BLOCK) == MAX_CHUNKS


class Step:
    """Attention of one step over random pages; pages that no sequence has are NaN."""

    def __init__(
        self,
        tree: Tree,
        ends: list[int],
        device: torch.device,
        num_heads: int = HEADS,
        num_kv_heads: int = KV_HEADS,
    ) -> None:
        torch.manual_seed(0)
        self.ends = torch.tensor(ends, device=device).int()
        width = max(len(table) for table in tree.tables)
        rows_each = len(ends) // len(tree.tables)
        tables = [[*t, *[t[0]] * (width - len(t))] for t in tree.tables for _ in range(rows_each)]
        self.tables = torch.tensor(tables, device=device).int()
        shape = tree.num_pages, 1, 2, PAGE, num_kv_heads, DIM
        self.kv = torch.randn(shape, device=device).bfloat16()
        self.q = torch.randn(len(ends), num_heads, DIM, device=device).bfloat16()
        self.gate = torch.randn(len(ends), num_heads * DIM, device=device).bfloat16()

    def attend(self, pages: SharedPages | None) -> torch.Tensor:
        num_rows, num_heads, _ = self.q.shape
        workspace = AttentionWorkspace.allocate(num_rows, num_heads, DIM, self.q.device)
        workspace.partials.fill_(float("nan"))
        workspace.stats.fill_(float("nan"))
        return attention_decode(
            self.q, self.gate, self.kv, 0, self.tables, self.ends, workspace,
            shared=pages.reads if pages else None, block=BLOCK,
        )  # fmt: skip


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts as short as here are shared too."""
    monkeypatch.setattr(shared_pages, "MIN_TOKENS", 0)


LAYOUT = CacheLayout(
    kv_dtype="bfloat16", page_size=PAGE, num_attention_layers=1, num_kv_heads=KV_HEADS,
    head_dim=DIM, num_deltanet_layers=0, num_v_heads=0, k_dim=0, v_dim=0, conv_channels=0,
    conv_state_len=0,
)  # fmt: skip


def rows_of(tree: Tree, starts: list[int]) -> list[Row]:
    return [
        Row(i, table, start, None)
        for i, (table, start) in enumerate(zip(tree.tables, starts, strict=True))
    ]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("heads", [(HEADS, KV_HEADS), (7, 1), (3, 3), (16, 1)])
def test_rows_with_a_common_prefix(heads: tuple[int, int], device: torch.device) -> None:
    """Nine rows of three groups, the last of which is much longer, so that its chunks are."""
    tree = Tree()
    tree.add(0, 0, 40)
    for _ in range(5):
        tree.add(0, 33, 3)
    tree.add(1, 35, 4)
    tree.add(0, 33, 110)
    tree.add(7, 130, 20)
    ends = [len(table) * PAGE - i for i, table in enumerate(tree.tables)]
    step = Step(tree, ends, device, *heads)
    pages = SharedPages(LAYOUT, rows_of_tile(*heads), 12, device)
    pages.write(rows_of(tree, [end - 1 for end in ends]), 1)
    assert int(pages.reads.num_items) > 0
    assert torch.equal(step.attend(pages), step.attend(None))


@pytest.mark.usefixtures("short")
def test_tokens_of_one_sequence(device: torch.device) -> None:
    """Drafts: three tokens a sequence, with a padded token, and one whose length the host does not
    know: more drafts were accepted, and its chunks have become longer."""
    tree = Tree()
    tree.add(0, 0, 20)
    tree.add(0, 8, 9)
    tree.add(0, 0, 129)
    long = 2 * BLOCK * MAX_CHUNKS
    ends = [301, 302, 303, 260, 261, 0, long, long + 1, long + 2]
    step, pages = Step(tree, ends, device), SharedPages(LAYOUT, TILE_ROWS, 9, device)
    pages.write(rows_of(tree, [300, 259, long - 3]), 3)
    found, alone = step.attend(pages), step.attend(None)
    assert torch.equal(found, alone)
    assert not found[5].any()


@pytest.mark.usefixtures("short")
def test_written_only_when_it_changes(device: torch.device) -> None:
    tree, pages = Tree(), SharedPages(LAYOUT, TILE_ROWS, 4, device)
    tree.add(0, 0, 20)
    tree.add(0, 16, 4)
    rows = rows_of(tree, [300, 301])
    pages.write(rows, 1)
    num_items = int(pages.reads.num_items)
    assert num_items == 16 * PAGE // (MIN_BLOCKS * BLOCK)
    pages.reads.num_items.zero_()
    pages.write(rows_of(tree, [301, 302]), 1)
    assert int(pages.reads.num_items) == 0, "nothing has changed"
    pages.forget()
    pages.write(rows, 1)
    assert int(pages.reads.num_items) == num_items
    apart = Tree()
    apart.add(0, 0, 20)
    apart.add(0, 0, 20)
    pages.write(rows_of(apart, [300, 301]), 1)
    assert int(pages.reads.num_items) == 0
    assert not pages.reads.own.any()


@pytest.mark.usefixtures("short")
def test_close_to_plain_attention(device: torch.device) -> None:
    tree = Tree()
    tree.add(0, 0, 20)
    tree.add(0, 17, 2)
    step, pages = Step(tree, [320, 300], device), SharedPages(LAYOUT, TILE_ROWS, 4, device)
    pages.write(rows_of(tree, [319, 299]), 1)
    found = step.attend(pages)
    for row, end in enumerate((320, 300)):
        k, v = step.kv[step.tables[row].long(), 0].transpose(0, 1).flatten(1, 2)[:, :end].float()
        q = step.q[row].view(KV_HEADS, -1, DIM).float()
        scores = torch.einsum("hgd,jhd->hgj", q, k) * DIM**-0.5
        out = torch.einsum("hgj,jhd->hgd", scores.softmax(-1), v).flatten()
        assert relative_error(found[row], out * step.gate[row].float().sigmoid()) < 8e-3


def test_short_contexts_are_not_shared(device: torch.device) -> None:
    tree = Tree()
    tree.add(0, 0, 20)
    pages = SharedPages(LAYOUT, TILE_ROWS, 3, device)
    pages.write(rows_of(tree, [300]), 3)
    assert not pages.reads.num_items.any()
    tree.tables[0] = [*range(800)]
    pages.write(rows_of(tree, [shared_pages.MIN_TOKENS // 3]), 3)
    assert int(pages.reads.num_items) > 0
