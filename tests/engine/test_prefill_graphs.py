"""What a graph of a prefill pass is sent: the pass, and nothing to do beyond it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Keep, Row
from engine.graphs.prefill_graphs import ROWS, TOKENS, Shape
from engine.kernels.batch.triton_prefill_plan import BLOCK, TILE_LEN, HostPlan
from transport.wire.layout import CacheLayout

chunks = st.lists(
    st.tuples(st.integers(0, 40).map(lambda n: n * 64) | st.integers(0, 2560), st.integers(1, 256)),
    min_size=1,
    max_size=16,
)
LAYOUT = CacheLayout("bfloat16", 64, 1, 1, 16, 1, 4, 3, 1, 4, 4)


@settings(deadline=None)
@given(chunks)
def test_a_plan_says_what_simple_loops_say(spec: list[tuple[int, int]]) -> None:
    starts, lens = zip(*spec, strict=True)
    plan = HostPlan.of(starts, lens)
    firsts, block_firsts = [0], [0]
    block_rows, token_rows, tiles = [], [], []
    for row, (start, length) in enumerate(spec):
        firsts.append(firsts[-1] + length)
        blocks = -(-length // BLOCK)
        block_firsts.append(block_firsts[-1] + blocks)
        block_rows += [row] * blocks
        token_rows += [row] * length
        tiles += [(start + first, row, first) for first in range(0, length, TILE_LEN)]
    tiles.sort(key=lambda tile: -tile[0])
    assert plan.firsts.tolist() == firsts
    assert plan.starts.tolist() == list(starts)
    assert plan.block_firsts.tolist() == block_firsts
    assert plan.block_rows.tolist() == block_rows
    assert plan.token_rows.tolist() == token_rows
    assert plan.tiles.tolist() == [[row, first] for _, row, first in tiles]


@settings(deadline=None)
@given(chunks)
def test_a_padded_pass_is_the_pass_and_empty_rows(spec: list[tuple[int, int]]) -> None:
    rows, page = [], 0
    for slot, (start, length) in enumerate(spec):
        count = LAYOUT.pages_for(start + length)
        pages = tuple(range(page, page + count + 2))
        page += count
        sample = bool(slot % 2) or bool((start + length) % 64)
        keep = Keep(length, slot + 99) if slot % 3 == 0 else None
        rows.append(Row(slot + 3, pages, start, tuple(range(length)), sample=sample, keep=keep))
    num_tokens = sum(row.length for row in rows)
    shape = Shape(next(n for n in TOKENS if n >= num_tokens), ROWS[len(rows) > 1])
    parts = shape.parts(rows, LAYOUT)
    assert {name: part.size for name, part in parts.items()} == shape.lengths
    assert all(part.dtype == np.int32 for part in parts.values())
    ids = [token for row in rows for token in row.token_ids or ()]
    assert parts["ids"][:num_tokens].tolist() == ids
    assert (parts["positions"][num_tokens:] == -1).all()
    firsts, positions = parts["firsts"], parts["positions"]
    tables = parts["tables"].reshape(-1, shape.pages)
    for i, row in enumerate(rows):
        end = row.start + row.length
        assert positions[firsts[i] : firsts[i + 1]].tolist() == list(range(row.start, end))
        held = row.block_table[: LAYOUT.pages_for(end)]
        assert tuple(tables[i, : len(held)]) == held
    keeps = [(row.keep.num_tokens, row.keep.state_slot) if row.keep else (0, -1) for row in rows]
    keeps += [(0, -1)] * (shape.rows + 1 - len(rows))
    assert parts["keeps"].reshape(-1, 2).tolist() == [list(keep) for keep in keeps]
    # Every row beyond, and the last in any case, has neither tokens nor blocks.
    assert (np.diff(firsts)[len(rows) :] == 0).all()
    assert (np.diff(parts["block_firsts"])[len(rows) :] == 0).all()
    tiles = parts["tiles"].reshape(-1, 2)
    plan = HostPlan.of([row.start for row in rows], [row.length for row in rows])
    assert tiles[: len(plan.tiles)].tolist() == plan.tiles.tolist()
    assert (tiles[len(plan.tiles) :] == (shape.rows, 0)).all()
    sampled = [(i, row) for i, row in enumerate(rows) if row.sample]
    last = [firsts[i + 1] - 1 for i, _ in sampled]
    assert parts["sample_index"][: len(sampled)].tolist() == last
    assert parts["sample_slots"][: len(sampled)].tolist() == [row.state_slot for _, row in sampled]


def test_a_pass_of_nothing_has_only_empty_rows_and_padding() -> None:
    shape = Shape(128, 32)
    parts = shape.parts((), LAYOUT)
    assert {name: part.size for name, part in parts.items()} == shape.lengths
    assert (parts["positions"] == -1).all()
    assert (parts["slots"] == -1).all()
    assert (parts["block_rows"] == shape.rows).all()
    assert (parts["token_rows"] == shape.rows).all()
    assert (parts["tiles"].reshape(-1, 2) == (shape.rows, 0)).all()
    assert (parts["keeps"].reshape(-1, 2) == (0, -1)).all()
    others = "ids", "ends", "firsts", "starts", "block_firsts", "tables"
    assert not any(parts[name].any() for name in others)
