"""Cut a batch into forward passes, and check that it can be computed at all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.batch import ForwardBatch, Row
from transport.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize


@dataclass(frozen=True)
class Pass:
    """Rows computed together, decode rows first; ``sampled`` are batch indices in their order."""

    rows: tuple[Row, ...]
    sampled: tuple[int, ...]


def passes(batch: ForwardBatch, block: int | None) -> list[Pass]:
    """All rows in one pass (``block`` None), or decode rows together and prefill in blocks.

    A block is at most ``block`` tokens of one prompt, counted from its chunk's aligned start: the
    same blocks, thus the same arithmetic, however the prompt was cut and whatever runs beside it.
    """
    decode = [(i, row) for i, row in enumerate(batch.rows) if row.token_ids is None]
    prefill = [(i, row) for i, row in enumerate(batch.rows) if row.token_ids is not None]
    if block is None:
        return [_pass(decode + prefill)]
    result = [_pass(decode)] if decode else []
    for index, row in prefill:
        result += [_pass([(index, part)]) for part in _blocks(row, block)]
    return result


def check(
    batch: ForwardBatch, layout: CacheLayout, pools: PoolSize, max_position_embeddings: int
) -> None:
    """Assert what the engine relies on; a violation is a bug of the scheduler's."""
    assert batch.rows, "an empty batch"
    slots = [row.state_slot for row in batch.rows]
    assert len(set(slots)) == len(slots), f"a state slot twice in one batch: {sorted(slots)}"
    for row in batch.rows:
        end = row.start + row.length
        where = f"state slot {row.state_slot}, tokens {row.start} to {end}"
        assert 0 <= row.state_slot < pools.num_state_slots, where
        assert row.length > 0, f"{where}: no tokens"
        assert end <= max_position_embeddings, f"{where}: beyond {max_position_embeddings}"
        needed = layout.pages_for(end)
        assert needed <= len(row.block_table), f"{where}: {len(row.block_table)} of {needed} pages"
        assert all(0 <= page < pools.num_pages for page in row.block_table), f"{where}: page ids"
        if row.token_ids is None:
            assert row.start > 0, f"{where}: decode without a prompt"
            assert row.sample, f"{where}: decode that does not sample"
        else:
            assert row.start % CHUNK_ALIGNMENT == 0, f"{where}: unaligned start"
            assert row.sample or end % CHUNK_ALIGNMENT == 0, f"{where}: unaligned end"


def _pass(rows: Sequence[tuple[int, Row]]) -> Pass:
    return Pass(tuple(row for _, row in rows), tuple(i for i, row in rows if row.sample))


def _blocks(row: Row, block: int) -> list[Row]:
    assert row.token_ids is not None
    offsets = range(0, row.length, block)
    return [
        replace(
            row,
            start=row.start + offset,
            token_ids=row.token_ids[offset : offset + block],
            sample=row.sample and offset == offsets[-1],
        )
        for offset in offsets
    ]
