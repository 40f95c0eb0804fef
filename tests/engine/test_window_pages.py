"""Window pages: no token that a later one can read is overwritten, whatever the batches."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine.batch import ForwardBatch, Keep, Row, passes
from engine.model.registry import read_config
from engine.window_pages import Copy, WindowPages, num_work_pages
from tests.engine.families import family_checkpoint
from transport.wire.layout import CHUNK_ALIGNMENT, CacheLayout, PoolSize

MOST_TOKENS = 1024
NUM_SLOTS, NUM_KEPT = 5, 2
Token = tuple[str, int]
"""A text and a position in it."""


def layout_of(window: int, page_size: int) -> CacheLayout:
    return CacheLayout(
        "float32", page_size, 1, 1, 1, 0, 0, 0, 0, 0, 0, num_window_layers=5, window=window
    )


@dataclass
class Text:
    """``tokens``: what its positions must hold. It begins behind ``start`` tokens of another."""

    slot: int
    prompt_len: int
    tokens: list[Token]
    start: int = 0
    num_cached: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_cached = self.start


class Memory:
    """The window pages of a worker, with the token that each position holds."""

    def __init__(self, window: int, page_size: int) -> None:
        self.layout = layout_of(window, page_size)
        num_work = num_work_pages(self.layout, MOST_TOKENS)
        pools = PoolSize(1, NUM_SLOTS + NUM_KEPT, num_work)
        self.pages = WindowPages(self.layout, pools)
        num_pages = (NUM_SLOTS + NUM_KEPT) * self.layout.ring_pages + num_work
        self.held: list[list[Token | None]] = [[None] * page_size for _ in range(num_pages)]

    def launch(self, rows: list[tuple[Row, Text]]) -> None:
        """Compute a batch as the engine does: each query reads its window."""
        sequences = {row.state_slot: sequence for row, sequence in rows}
        batch = ForwardBatch(tuple(row for row, _ in rows))
        for part in passes(batch, None, longest=self.pages.longest_chunk, groups=self.pages.groups):
            pages = self.pages.of_pass(part.rows)
            self.copy(pages.before)
            prompts = iter(pages.tables)
            tables = [self._ring(r) if r.token_ids is None else next(prompts) for r in part.rows]
            for row, table in zip(part.rows, tables, strict=True):
                for position in range(row.start, row.start + row.length):
                    page, offset = divmod(position, self.layout.page_size)
                    token = sequences[row.state_slot].tokens[position]
                    self.held[table[page]][offset] = token
            for row, table in zip(part.rows, tables, strict=True):
                first = max(0, row.start + 1 - self.layout.window)
                for position in range(first, row.start + row.length):
                    page, offset = divmod(position, self.layout.page_size)
                    token = sequences[row.state_slot].tokens[position]
                    assert self.held[table[page]][offset] == token
            for group in pages.after:
                self.copy(group)

    def _ring(self, row: Row) -> Sequence[int]:
        end = self.layout.pages_for(row.start + row.length)
        return [self.pages.in_ring(row.state_slot, page) for page in range(end)]

    def copy(self, copies: list[Copy]) -> None:
        sources, targets = {source for source, _ in copies}, [target for _, target in copies]
        assert len(set(targets)) == len(targets)
        assert not sources & set(targets)
        for source, target in copies:
            self.held[target] = self.held[source].copy()

    def restore(self, slot: int, kept: int) -> None:
        ring = self.layout.ring_pages
        for i in range(ring):
            self.held[slot * ring + i] = self.held[kept * ring + i].copy()


def chunks(sequence: Text, rng: random.Random) -> Iterator[tuple[int, int]]:
    """The chunks of its prompt, which are aligned from where it begins."""
    start = sequence.start
    while start < sequence.prompt_len:
        length = rng.choice([64, 128, 192, 320, 640, 1024]) if rng.random() < 0.7 else 64
        end = min(start + length, sequence.prompt_len)
        yield start, end
        start = end


@pytest.mark.parametrize("seed", range(60))
def test_what_can_be_read_is_never_overwritten(seed: int) -> None:
    rng = random.Random(seed)
    memory = Memory(rng.choice([1, 21, 64, 70, 200, 512]), rng.choice([16, 32, 64]))
    sequences, kept = [], list[tuple[int, list[Token]]]()
    for slot in range(NUM_SLOTS):
        start, beginning = 0, list[Token]()
        if kept and rng.random() < 0.7:
            from_slot, beginning = rng.choice(kept)
            start = len(beginning)
            memory.restore(slot, from_slot)
        length = start + rng.choice([1, 63, 64, 65, 700, 1500, 2600])
        own = [(f"{seed} {slot}", i) for i in range(start, length + 200)]
        sequence = Text(slot, length, [*beginning, *own], start)
        sequences.append(sequence)
        for begin, end in chunks(sequence, rng):
            keep = None
            if len(kept) < NUM_KEPT and rng.random() < 0.4:
                most = (end - begin) // CHUNK_ALIGNMENT
                num_tokens = rng.randint(1, most) * CHUNK_ALIGNMENT if most else end - begin
                keep = Keep(num_tokens, NUM_SLOTS + len(kept))
                kept.append((keep.state_slot, sequence.tokens[: begin + num_tokens]))
            chunk = Row(slot, (), begin, (0,) * (end - begin), sample=end == length, keep=keep)
            others = [
                (Row(each.slot, (), each.num_cached, None), each)
                for each in sequences[:-1]
                if rng.random() < 0.5
            ]
            memory.launch([*others, (chunk, sequence)])
            for _, each in others:
                each.num_cached += 1
            sequence.num_cached = end


@pytest.mark.parametrize("seed", range(20))
def test_prompts_share_the_work_pages_or_take_turns(seed: int) -> None:
    rng = random.Random(seed)
    memory = Memory(64, 64)
    lengths = [rng.choice([64, 300, 576, 640, 1024, 1216]) for _ in range(NUM_SLOTS)]
    rows = []
    for slot, length in enumerate(lengths):
        sequence = Text(slot, length, [(f"{slot}", i) for i in range(length)])
        rows.append((Row(slot, (), 0, (0,) * length), sequence))
    batch = ForwardBatch(tuple(row for row, _ in rows))
    groups = memory.pages.groups
    parts = passes(batch, None, longest=memory.pages.longest_chunk, groups=groups)
    assert sorted(i for part in parts for i in part.sampled) == list(range(NUM_SLOTS))
    for part in parts:
        needed = sum(memory.pages.num_work(row) for row in part.rows)
        assert needed <= num_work_pages(memory.layout, MOST_TOKENS)
    memory.launch(rows)


def test_a_chunk_that_is_longer_than_all_work_pages_is_cut() -> None:
    pages = WindowPages(layout_of(64, 64), PoolSize(1, 2, num_work_pages(layout_of(64, 64), 0)))
    row = Row(0, (), 0, (0,) * 5000)
    parts = passes(ForwardBatch((row,)), None, longest=pages.longest_chunk, groups=pages.groups)
    assert [part.rows[0].start for part in parts] == [0, 1984, 3968]
    assert [part.sampled for part in parts] == [(), (), (0,)]


@pytest.mark.parametrize("window", [1, 512, 1024, 4096])
def test_a_sequence_holds_the_pages_of_a_window_and_two(window: int) -> None:
    layout = layout_of(window, 64)
    assert layout.ring_pages <= -(-window // 64) + 2
    assert layout.num_window_pages(1 << 20) == layout.ring_pages
    assert layout.num_window_pages(65) == 2, "a short one is handed off with no more"


def test_a_context_of_32k_tokens_of_gemma_3_12b_takes_a_fifth() -> None:
    """8 of its 48 layers attend to all tokens, the others to 1,024."""
    shape = {
        "kv_dtype": "bfloat16", "page_size": 64, "num_kv_heads": 8, "head_dim": 256,
        "num_deltanet_layers": 0, "conv_channels": 0, "conv_state_len": 0, "num_v_heads": 0,
        "k_dim": 0, "v_dim": 0,
    }  # fmt: skip
    whole = CacheLayout(**shape, num_attention_layers=48)
    parts = CacheLayout(**shape, num_attention_layers=8, num_window_layers=40, window=1024)
    before, after = (
        each.pages_for(32_768) * each.page_bytes + each.state_slot_bytes for each in (whole, parts)
    )
    assert (before >> 20, after >> 20) == (12_288, 2_408)


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("gemma3_text", {}, 21),
        ("gemma3_text", {"sliding_window": 256}, 256),
        ("gemma3_text", {"sliding_window": 257}, None),
        ("gemma3_text", {"layer_types": ["full_attention"] * 4}, None),
        ("qwen3-window", {}, 64),
        ("qwen3_moe-window", {}, None),
        ("llama", {}, None),
    ],
)
def test_which_windows_have_rings(
    name: str, changes: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    """Windows of some layers, up to a quarter of the 1,024 tokens of the longest sequence."""
    config = json.loads((family_checkpoint(name) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    model = read_config(tmp_path)
    layout = model.cache_layout("float32", 16)
    assert model.ring_window == window
    assert layout.num_attention_layers + layout.num_window_layers == model.num_attention_layers
    assert layout.has_states == (window is not None) == (layout.ring_pages > 0)


def test_other_models_say_nothing_of_windows_on_the_wire() -> None:
    plain = replace(layout_of(64, 64), num_window_layers=0, window=0)
    assert b"window" not in msgspec.msgpack.encode(plain)
    assert b"work" not in msgspec.msgpack.encode(PoolSize(1, 1))
    sent = msgspec.msgpack.encode((layout_of(64, 64), PoolSize(1, 1, 9)))
    there = msgspec.msgpack.decode(sent, type=tuple[CacheLayout, PoolSize])
    assert there == (layout_of(64, 64), PoolSize(1, 1, 9))
