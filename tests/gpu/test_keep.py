"""On a GPU in bfloat16: keep the state behind a part of a chunk, and begin sequences from one.

Four layers of the real widths with random weights. Where two passes run as the same graph, their
matrix products have the same shapes, and the states of the first layer are equal to the last bit;
elsewhere they differ by rounding.
"""

import statistics

import pytest
import torch

from engine.batch import ForwardBatch, Keep, Row
from engine.runner import Engine
from tests.gpu.keeping import (
    KEPT,
    LOGITS_BOUND,
    NUM_SLOTS,
    bind,
    launch,
    load,
    same,
    states,
    table,
    text,
)
from tests.gpu.teacher_forced import Forced
from tests.kernels.closeness import relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

NUM_TIMED = 20


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("length", "num_tokens"),
    [(250, 192), (250, 250), (130, 130), (1000, 832), (1024, 1024), (4096, 3136)],
)
def test_a_kept_state_is_that_of_a_chunk_that_ends_there(
    engine: Engine, forced: Forced, graphs: bool, length: int, num_tokens: int
) -> None:
    ids = text(length)
    for slot in (0, 1, 2, KEPT):
        engine.poison_slot(slot)
    launch(engine, Row(0, table(0), 0, ids))
    launch(engine, Row(1, table(1), 0, ids, keep=Keep(num_tokens, KEPT)))
    plain, keeping = forced.logits[-2:]
    assert relative_error(keeping, plain) < LOGITS_BOUND / 20
    same(states(engine, 1), states(engine, 0), exact=True)
    launch(engine, Row(2, table(2), 0, ids[:num_tokens]))
    same(states(engine, KEPT), states(engine, 2), exact=graphs)


@pytest.mark.parametrize(("length", "num_tokens"), [(200, 64), (1000, 448), (3000, 2944)])
def test_a_prompt_goes_on_from_a_kept_state(
    engine: Engine, forced: Forced, graphs: bool, length: int, num_tokens: int
) -> None:
    ids = text(length)
    launch(engine, Row(0, table(0), 0, ids, keep=Keep(num_tokens, KEPT)))
    whole, true_states = forced.logits[-1], states(engine, 0)
    engine.poison_slot(0)
    num_shared = num_tokens // 64
    engine.poison_pages(table(0)[num_shared:])
    bind(engine, 1)
    engine.restore(1, KEPT, num_tokens)
    shared = (*table(0)[:num_shared], *table(1))
    launch(engine, Row(1, shared, num_tokens, ids[num_tokens:]))
    assert relative_error(forced.logits[-1], whole) < LOGITS_BOUND
    same(states(engine, 1), true_states, exact=False)


def test_a_sequence_begins_behind_an_answer(engine: Engine, forced: Forced, graphs: bool) -> None:
    """In chunks that are aligned from the 73 tokens on whose state it begins from, and decodes."""
    prompt, suffix = text(70), text(500, seed=1)
    ((first,),) = launch(engine, Row(0, table(0), 0, prompt))
    answer = [first.token_id or 0]
    for start in range(70, 73):
        ((sampled,),) = launch(engine, Row(0, table(0), start, None))
        answer.append(sampled.token_id or 0)
    ids = (*prompt, *answer[:3], *suffix)
    bind(engine, 1)
    engine.restore(1, 0, 73)
    engine.copy_page(table(0)[1], table(1)[0])
    launch(engine, Row(0, table(0), 73, None))  # its owner goes on writing to the page copied
    shared = (table(0)[0], *table(1))
    launch(engine, Row(1, shared, 73, suffix[:128], sample=False))
    rest = Row(1, shared, 73 + 128, suffix[128:], keep=Keep(64, KEPT))
    launch(engine, rest)
    begun = forced.logits[-1]
    launch(engine, Row(2, table(2), 0, ids))
    assert relative_error(begun, forced.logits[-1]) < LOGITS_BOUND
    same(states(engine, 1), states(engine, 2), exact=False)
    launch(engine, Row(3, table(3), 0, ids[: 73 + 192]))
    same(states(engine, KEPT), states(engine, 3), exact=False)

    with torch.inference_mode():
        engine._sampler.next_token[1:3] = 7
    decoded = [Row(1, shared, len(ids), None), Row(2, table(2), len(ids), None)]
    launch(engine, *decoded)
    one, other = forced.logits[-1]
    assert relative_error(one, other) < LOGITS_BOUND


def test_some_rows_of_a_pass_keep(engine: Engine, forced: Forced, graphs: bool) -> None:
    lens = {0: 261, 1: 7, 2: 128, 3: 64, 4: 300}
    keeps = {0: Keep(192, 20), 1: Keep(7, 21), 2: Keep(128, 22), 4: Keep(64, 23)}
    for slot in range(NUM_SLOTS):
        engine.poison_slot(slot)
    rows = [Row(slot, table(slot), 0, text(num, slot)) for slot, num in lens.items()]
    launch(engine, *rows)
    plain, own = forced.logits[-1], [states(engine, slot) for slot in lens]
    kept = [Row(r.state_slot, r.block_table, 0, r.token_ids, keep=keeps.get(r.state_slot))
            for r in rows]  # fmt: skip
    launch(engine, *kept)
    assert relative_error(forced.logits[-1], plain) < LOGITS_BOUND / 20
    for slot, truth in zip(lens, own, strict=True):
        same(states(engine, slot), truth, exact=True)
    for slot in range(len(lens), KEPT):
        assert all(part.isnan().all() for part in states(engine, slot))
    for slot, keep in keeps.items():
        launch(engine, Row(5, table(5), 0, text(lens[slot], slot)[: keep.num_tokens]))
        same(states(engine, keep.state_slot), states(engine, 5), exact=False)


@pytest.mark.parametrize(("num_rows", "length"), [(1, 1024), (8, 1024), (1, 4096)])
def test_what_keeping_costs(
    engine: Engine, capsys: pytest.CaptureFixture[str], num_rows: int, length: int
) -> None:
    """Printed, not judged: another process may use the GPU."""
    pages = [table(slot)[: length // 64] for slot in range(num_rows)]

    def batch(keeps: bool) -> ForwardBatch:
        return ForwardBatch(
            tuple(
                Row(
                    slot, pages[slot], 0, text(length, slot), sample=False,
                    keep=Keep(length // 2, 8 + slot) if keeps else None,
                )
                for slot in range(num_rows)
            )
        )  # fmt: skip

    batches = batch(keeps=False), batch(keeps=True)
    taken_ms: tuple[list[float], list[float]] = ([], [])
    for _ in range(NUM_TIMED):
        for each, times in zip(batches, taken_ms, strict=True):
            torch.cuda.synchronize()
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            engine.launch(each)
            ended.record()
            ended.synchronize()
            times.append(began.elapsed_time(ended))
    plain, keeping = (statistics.median(times[2:]) for times in taken_ms)
    with capsys.disabled():
        print(
            f"\n{num_rows} x {length} tokens, 3 DeltaNet layers and 1 of attention: "
            f"{plain:.3f} ms, {keeping:.3f} ms with a kept state each ({keeping - plain:+.3f} ms)"
        )


def test_what_restoring_costs(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    bind(engine, 0)
    times = []
    for _ in range(NUM_TIMED):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        engine.restore(0, KEPT, 64)
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    num_bytes = engine.layout.state_slot_bytes
    with capsys.disabled():
        print(f"\nrestore of {num_bytes >> 20} MiB: {statistics.median(times):.3f} ms")
