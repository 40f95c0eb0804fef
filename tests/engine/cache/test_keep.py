"""A state kept behind a part of a chunk, and sequences that begin from a kept state."""

import random
from dataclasses import replace

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Keep, Row, Sampled, Scoring
from engine.kernels.reference import ReferenceKernels
from engine.runner import Engine
from tests.engine.checkpoints import SHAPES, checkpoint
from tests.engine.driver import UNLIMITED, load_engine
from transport.wire.sampling import SamplingParams

PROMPT = tuple(random.Random(1).randrange(260) for _ in range(64 * 4 + 5))
OTHER = tuple(random.Random(2).randrange(260) for _ in range(64 * 3 + 9))
ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=263)
KEPT = 9
"""The state slot that keeps."""


def bind(engine: Engine, slot: int, outputs: tuple[int, ...] = ()) -> None:
    engine.bind(Binding(slot, PROMPT, outputs, ALL_LOGPROBS, UNLIMITED))


def launch(engine: Engine, *rows: Row) -> list[tuple[Sampled, ...]]:
    return list(engine.launch(ForwardBatch(rows)).result().sampled)


def compute(
    engine: Engine, row: Row, budget: int = 1 << 20, keep: Keep | None = None
) -> Sampled | None:
    """A prompt's row in chunks of ``budget`` tokens; what its last one sampled. ``keep`` counts
    from the row's first token."""
    assert row.token_ids is not None
    outcomes: tuple[Sampled, ...] = ()
    for offset in range(0, row.length, budget):
        chunk = replace(
            row,
            start=row.start + offset,
            token_ids=row.token_ids[offset : offset + budget],
            sample=row.sample and offset + budget >= row.length,
            keep=keep.within(offset, budget) if keep else None,
        )
        (outcomes,) = launch(engine, chunk)
    return outcomes[0] if outcomes else None


def state(engine: Engine, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    return engine.cache.conv[slot].clone(), engine.cache.recurrent[slot].clone()


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(map(torch.equal, one, other)) and bool(one[1].isfinite().all())


def close(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, other, strict=True))


def by_id(sampled: Sampled | None) -> dict[int, float]:
    assert sampled is not None
    assert sampled.logprobs is not None
    return dict(sampled.logprobs.top)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("num_tokens", [64, 192, 261])
def test_a_kept_state_is_that_of_a_chunk_that_ends_there(
    name: str, num_tokens: int, dtype: str
) -> None:
    engine = load_engine(checkpoint(name), ReferenceKernels(prefill_block=64), dtype=dtype)
    pages = tuple(range(20))
    for slot in (0, 1, 2):
        bind(engine, slot)
    plain = compute(engine, Row(0, pages, 0, PROMPT))
    plain_pages = engine.cache.kv[:17].clone()
    keeping = compute(engine, Row(1, pages, 0, PROMPT), keep=Keep(num_tokens, KEPT))
    assert keeping == plain
    assert same(state(engine, 1), state(engine, 0))
    assert torch.equal(engine.cache.kv[:16], plain_pages[:16])
    ended = Row(2, tuple(range(20, 40)), 0, PROMPT[:num_tokens], num_tokens == 261)
    compute(engine, ended)
    assert same(state(engine, KEPT), state(engine, 2))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("budget", [64, 128, 1024])
def test_a_prompt_goes_on_from_a_kept_state_with_the_same_bits(name: str, budget: int) -> None:
    engine = load_engine(checkpoint(name), ReferenceKernels(prefill_block=64))
    for slot in (0, 1):
        bind(engine, slot)
    keep = Keep(128, KEPT)
    whole = compute(engine, Row(0, tuple(range(20)), 0, PROMPT), budget, keep)
    true_state = state(engine, 0)
    engine.poison_slot(0)
    engine.poison_pages(range(8, 20))
    engine.restore(1, KEPT, 128)
    shared = (*range(8), *range(50, 62))
    assert compute(engine, Row(1, shared, 128, PROMPT[128:]), budget) == whole
    assert same(state(engine, 1), true_state)


@pytest.mark.parametrize("block", [None, 64])
@pytest.mark.parametrize("budget", [64, 1024])
@pytest.mark.parametrize("name", ["per_expert", "lean", "odd"])
def test_a_sequence_begins_behind_an_answer(name: str, budget: int, block: int | None) -> None:
    """From the state behind any number of tokens: whole pages are shared, the last is copied."""
    engine = load_engine(checkpoint(name), ReferenceKernels(block))
    bind(engine, 0)
    first = compute(engine, Row(0, tuple(range(20)), 0, PROMPT[:70]))
    assert first is not None
    answer = [first.token_id]
    for start in range(70, 73):
        ((sampled,),) = launch(engine, Row(0, tuple(range(20)), start, None))
        answer.append(sampled.token_id)
    text = (*PROMPT[:70], *(token for token in answer[:3] if token is not None))
    assert len(text) == 73
    bind(engine, 1)
    engine.restore(1, 0, 73)
    engine.copy_page(4, 54)
    ((next_of_first,),) = launch(engine, Row(0, tuple(range(20)), 73, None))
    shared = (*range(4), 54, *range(60, 80))
    found = compute(engine, Row(1, shared, 73, OTHER), budget, Keep(128, KEPT))
    bind(engine, 2)
    whole = compute(engine, Row(2, tuple(range(80, 100)), 0, (*text, *OTHER)))
    assert by_id(found) == pytest.approx(by_id(whole), abs=1e-4)
    assert close(state(engine, 1), state(engine, 2))
    bind(engine, 3)
    kept = Row(3, tuple(range(100, 120)), 0, (*text, *OTHER[:128]))
    compute(engine, kept)
    assert close(state(engine, KEPT), state(engine, 3))
    # The owner of the page that was copied has gone on writing there.
    bind(engine, 4)
    again = compute(engine, Row(4, tuple(range(120, 130)), 0, (*text, answer[3] or 0)))
    assert by_id(again) == pytest.approx(by_id(next_of_first), abs=1e-4)


@pytest.mark.parametrize("block", [None, 64])
def test_some_rows_of_a_pass_keep(block: int | None) -> None:
    engine = load_engine(checkpoint("per_expert"), ReferenceKernels(block))
    lens = {0: 261, 1: 7, 2: 128, 3: 64, 4: 200}
    keeps = {0: Keep(192, 10), 1: Keep(7, 11), 2: Keep(128, 12), 4: Keep(64, 13)}

    def rows(keeping: dict[int, Keep], length: dict[int, int]) -> list[Row]:
        found = []
        for slot, num in length.items():
            pages = tuple(range(20 * slot, 20 * slot + 20))
            bind(engine, slot)
            found.append(Row(slot, pages, 0, PROMPT[:num], keep=keeping.get(slot)))
        return found

    plain = launch(engine, *rows({}, lens))
    states = [state(engine, slot) for slot in lens]
    assert launch(engine, *rows(keeps, lens)) == plain
    assert all(same(state(engine, slot), states[slot]) for slot in lens)
    launch(engine, *rows({}, {slot: keep.num_tokens for slot, keep in keeps.items()}))
    for slot, keep in keeps.items():
        assert close(state(engine, keep.state_slot), state(engine, slot))
    untouched = set(range(20)) - lens.keys() - {keep.state_slot for keep in keeps.values()}
    assert all(state(engine, slot)[1].isnan().all() for slot in untouched)


def test_a_scored_prompt_keeps() -> None:
    engine = load_engine(checkpoint("per_expert"))
    row = Row(0, tuple(range(20)), 0, PROMPT, scoring=Scoring(0, PROMPT[1:], 2))
    results = []
    for keep in (None, Keep(128, KEPT)):
        bind(engine, 0)
        results.append(engine.launch(ForwardBatch((replace(row, keep=keep),))).result())
    assert results[0] == results[1]
    bind(engine, 1)
    compute(engine, Row(1, tuple(range(20)), 0, PROMPT[:128]))
    assert close(state(engine, KEPT), state(engine, 1))


def test_a_state_restored_from_freed_memory_shows() -> None:
    engine = load_engine(checkpoint("per_expert"))
    bind(engine, 0)
    compute(engine, Row(0, tuple(range(20)), 0, PROMPT), keep=Keep(128, KEPT))
    engine.poison_slot(KEPT)
    bind(engine, 1)
    engine.restore(1, KEPT, 128)
    shared = (*range(8), *range(50, 62))
    assert compute(engine, Row(1, shared, 128, PROMPT[128:])) == Sampled(None)


def test_the_next_owner_of_a_slot_begins_at_its_first_token() -> None:
    engine = load_engine(checkpoint("per_expert"))
    bind(engine, 0)
    compute(engine, Row(0, tuple(range(20)), 0, PROMPT[:73]))
    bind(engine, 1)
    engine.restore(1, 0, 73)
    row = Row(1, tuple(range(20)), 73, PROMPT[73:137], sample=False)
    launch(engine, row)
    for bad, message in (
        (replace(row, start=137, token_ids=PROMPT[137:200]), "unaligned end"),
        (replace(row, start=128), "unaligned start"),
        (replace(row, start=64), "before the prefix of 73 tokens"),
    ):
        with pytest.raises(AssertionError, match=message):
            launch(engine, bad)
    bind(engine, 1)
    with pytest.raises(AssertionError, match="unaligned start"):
        launch(engine, row)
