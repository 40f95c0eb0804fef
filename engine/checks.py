"""Checks of a batch before it is launched: what the engine asserts of it."""

from engine.batch import ForwardBatch, Keep, Row
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize


class Checks:
    """Asserts the engine's preconditions; a violation is a bug of the scheduler.

    Chunks are aligned from the place where their sequence began: its first token, or the end of
    the prefix whose state it was given (``begin_at``).

    For decode rows, only pages added since the previous step are checked: checking long tables
    whole would cost more than the launch.
    """

    def __init__(self, layout: CacheLayout, pools: PoolSize, max_position_embeddings: int) -> None:
        self._layout, self._pools, self._max_end = layout, pools, max_position_embeddings
        self._num_checked = [0] * pools.num_state_slots
        self._begin = [0] * pools.num_state_slots

    def forget(self, state_slot: int) -> None:
        """Reset a slot for a new owner, which begins at its first token."""
        self._num_checked[state_slot] = self._begin[state_slot] = 0

    def begin_at(self, state_slot: int, num_tokens: int) -> None:
        """Note that the slot's new owner begins behind its first ``num_tokens`` tokens."""
        assert num_tokens > 0, f"state slot {state_slot}: a prefix of {num_tokens} tokens"
        self._begin[state_slot] = num_tokens

    def check(self, batch: ForwardBatch) -> None:
        assert batch.rows, "an empty batch"
        slots = [row.state_slot for row in batch.rows]
        slots += [row.keep.state_slot for row in batch.rows if row.keep is not None]
        assert len(set(slots)) == len(slots), f"a state slot twice in one batch: {sorted(slots)}"
        for row in batch.rows:
            problem = self._problem(row)
            assert not problem, (
                f"state slot {row.state_slot}, tokens {row.start} to {row.start + row.length}: "
                f"{problem}"
            )

    def _problem(self, row: Row) -> str:
        slot, table, end = row.state_slot, row.block_table, row.start + row.length
        if not 0 <= slot < self._pools.num_state_slots:
            return f"not one of {self._pools.num_state_slots} slots"
        if row.length <= 0:
            return "no tokens"
        if end > self._max_end:
            return f"beyond {self._max_end}"
        needed = self._layout.pages_for(end)
        if needed > len(table):
            return f"{len(table)} of {needed} pages"
        new = table
        if row.token_ids is None:
            new = table[self._num_checked[slot] :]
            self._num_checked[slot] = len(table)
        if new and not 0 <= min(new) <= max(new) < self._pools.num_pages:
            return f"page ids {new}, of {self._pools.num_pages} pages"
        if row.token_ids is None:
            if row.start <= 0:
                return "decode without a prompt"
            if row.keep is not None:
                return "decode that keeps a state"
            return "" if row.sample else "decode that does not sample"
        begin = self._begin[slot]
        if row.start < begin:
            return f"before the prefix of {begin} tokens that it was given"
        if (row.start - begin) % CHUNK_ALIGNMENT:
            return "unaligned start"
        if (end - begin) % CHUNK_ALIGNMENT and not row.sample:
            return "unaligned end"
        return self._problem_of_keep(row.keep, row.length) if row.keep else ""

    def _problem_of_keep(self, keep: Keep, length: int) -> str:
        num_slots = self._layout.num_slots(self._pools)
        if not 0 <= keep.state_slot < num_slots:
            return f"keeps a state in {keep.state_slot}, of {num_slots} slots"
        if not 0 < keep.num_tokens <= length:
            return f"keeps the state behind {keep.num_tokens} of its {length} tokens"
        aligned = keep.num_tokens % CHUNK_ALIGNMENT == 0 or keep.num_tokens == length
        aligned = aligned or not self._layout.has_states
        return "" if aligned else f"keeps the state behind {keep.num_tokens} tokens: unaligned"
