"""On a GPU in bfloat16: what is computed behind a kept prefix or a long context."""

import pytest
import torch

from engine.batch import ForwardBatch, Keep, Row
from engine.runner import Engine
from tests.gpu.keeping import (
    KEPT,
    LOGITS_BOUND,
    NUM_PAGES,
    bind,
    launch,
    load,
    same,
    states,
    table,
    text,
)
from tests.gpu.teacher_forced import Forced, kl
from tests.kernels.closeness import relative_error
from transport.copy.host_copy import HostCopy

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

MAX_KL = 0.0025
"""Mean of the KL divergence from what is computed without a kept prefix."""
PART = 9984


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(tmp_path_factory.mktemp("model"))


def test_tokens_behind_a_kept_prefix_are_as_likely_as_without(
    engine: Engine, forced: Forced, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the first token and of seven decoded ones, which are given."""
    found = []
    for seed, length in enumerate((150, 300, 700, 1100, 2000, 3000, 4100, 4900)):
        for kept in {64, length // 128 * 64, (length - 1) // 64 * 64, length - 20}:
            ids = text(length, seed)
            launch(engine, Row(0, table(0), 0, ids[:kept], keep=Keep(kept, KEPT)))
            for slot in (1, 2):
                bind(engine, slot)
            launch(engine, Row(2, table(2), 0, ids))
            whole = [forced.logits[-1][0]]
            engine.restore(1, KEPT, kept)
            tail = kept - kept % 64
            if kept > tail:
                engine.copy_page(table(0)[tail // 64], table(1)[0])
            shared = (*table(0)[: tail // 64], *table(1))
            launch(engine, Row(1, shared, kept, ids[kept:]))
            reused = [forced.logits[-1][0]]
            for step, token in enumerate(text(7, seed + 100)):
                with torch.inference_mode():
                    engine._sampler.next_token[1:3] = token
                at = length + step
                launch(engine, Row(1, shared, at, None), Row(2, table(2), at, None))
                reused.append(forced.logits[-1][0])
                whole.append(forced.logits[-1][1])
            found.append(kl(torch.stack(whole), torch.stack(reused)))
    mean = torch.cat(found).mean().item()
    with capsys.disabled():
        print(f"\nmean KL of {len(found)} prompts behind kept prefixes: {mean:.6f}")
    assert mean <= MAX_KL


def test_a_chunk_behind_a_long_context(engine: Engine, forced: Forced, graphs: bool) -> None:
    """Its context is shared out among several programs, a long pass's is not."""
    pages, ids = tuple(range(NUM_PAGES)), text(3 * PART + 293)
    launch(engine, Row(0, pages, 0, ids))
    whole, true_states = forced.logits[-1], states(engine, 0)
    bind(engine, 1)
    for start in range(0, 3 * PART, PART):
        launch(engine, Row(1, pages, start, ids[start : start + PART], sample=False))
    launch(engine, Row(1, pages, 3 * PART, ids[3 * PART :]))
    assert relative_error(forced.logits[-1], whole) < LOGITS_BOUND
    same(states(engine, 1), true_states, exact=False)


def test_a_batch_that_samples_nothing_is_done_when_the_gpu_has_computed_it(engine: Engine) -> None:
    """What it has kept is saved to the host, and shared, as soon as it says that it is done."""
    from transport.copy.cuda_host import CudaHostCopier  # cupy is on GPU machines only

    copier = CudaHostCopier(engine.cache, 1 << 30, after_steps=False)
    assert copier.pieces.wait(120)
    stream, ids = torch.cuda.current_stream(), text(4096)
    launch(engine, Row(0, table(0), 0, ids, sample=False, keep=Keep(3136, KEPT)))
    truth = states(engine, KEPT)
    for slot in (0, KEPT):
        engine.poison_slot(slot)
    torch.cuda.synchronize()
    bind(engine, 0)
    chunk = Row(0, table(0), 0, ids, sample=False, keep=Keep(3136, KEPT))
    step = engine.launch(ForwardBatch((chunk,)))
    assert not stream.query(), "too short to see that the host waits"
    step.wait()
    assert stream.query()
    state = HostCopy((), ((KEPT, list(range(copier.blocks_per_state))),))
    assert copier.save(state).wait(60)
    engine.poison_slot(KEPT)
    torch.cuda.synchronize()
    assert copier.fetch(state).wait(60)
    assert all(map(torch.equal, states(engine, KEPT), truth))
    assert copier.close(30)
