"""A pass as a graph does what the same pass does kernel by kernel, and touches nothing else."""

import random

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.graphs.prefill_graphs import MAX_PAGES, ROWS, TOKENS
from engine.runner import Engine
from tests.engine.compiled_kernels import PAGES, small_engine
from tests.kernels.closeness import relative_error
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

GREEDY = SamplingParams(temperature=0.0)
PASSES = [
    [(0, 1)], [(0, 64)], [(64, 65)], [(0, 128)], [(0, 129)], [(1024, 1000)], [(0, 1024)],
    [(0, 30), (64, 20), (0, 1)], [(0, 4096)], [(128, 3000), (0, 900), (64, 7)],
    [(0, 5 * i + 1) for i in range(32)], [(64 * (i % 3), 90 - i) for i in range(13)],
]  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    engine = small_engine(tmp_path_factory.mktemp("model"), "cuda")
    assert engine._prefill_graphs is not None
    return engine


def rows_of(engine: Engine, spec: list[tuple[int, int]], draw: random.Random) -> tuple[Row, ...]:
    pages = draw.sample(range(PAGES), PAGES)
    slots = draw.sample(range(engine.pools.num_state_slots), len(spec))
    rows = []
    for slot, (start, length) in zip(slots, spec, strict=True):
        count = engine.layout.pages_for(start + length)
        held, pages = tuple(pages[:count]), pages[count:]
        ids = tuple(draw.randrange(60_000) for _ in range(length))
        sample = bool((start + length) % 64) or draw.random() < 0.5
        rows.append(Row(slot, held, start, ids, sample=sample))
        engine.bind(Binding(slot, ids, (), GREEDY, StopRule(9)))
    return tuple(rows)


def launched(
    engine: Engine, rows: tuple[Row, ...], before: list[torch.Tensor]
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """The logits and the cache after it, from the cache ``before``."""
    caches = engine.cache.kv, engine.cache.conv, engine.cache.recurrent
    for cache, was in zip(caches, before, strict=True):
        cache.copy_(was)
    kept: list[torch.Tensor] = []
    sample = engine._sampler.sample

    def keep(logits, *rest):
        kept.append(logits.float().clone())
        return sample(logits, *rest)

    engine._sampler.sample = keep
    try:
        engine.launch(ForwardBatch(rows)).result()
    finally:
        engine._sampler.sample = sample
    torch.cuda.synchronize()
    return (kept[0] if kept else None), [cache.clone() for cache in caches]


@pytest.mark.parametrize("spec", PASSES, ids=lambda spec: f"{len(spec)}x{spec[0][1]}")
def test_a_graph_does_what_its_kernels_do(engine: Engine, spec: list[tuple[int, int]]) -> None:
    draw = random.Random(str(spec))
    rows = rows_of(engine, spec, draw)
    torch.manual_seed(1)
    caches = engine.cache.kv, engine.cache.conv, engine.cache.recurrent
    before = [torch.randn_like(cache) * 0.1 for cache in caches]
    graphs = engine._prefill_graphs
    assert graphs is not None
    assert graphs.shape_of(rows) is not None
    logits, after = launched(engine, rows, before)
    engine._prefill_graphs = None
    try:
        true_logits, true_after = launched(engine, rows, before)
    finally:
        engine._prefill_graphs = graphs
    own_pages = [page for row in rows for page in row.block_table]
    own_slots = [row.state_slot for row in rows]
    for cache, truth, was, own in zip(
        after, true_after, before, (own_pages, own_slots, own_slots), strict=True
    ):
        others = torch.ones(len(cache), dtype=torch.bool)
        others[own] = False
        assert torch.equal(cache[others], was[others])
        assert torch.isfinite(cache.float()).all()
        # The first layer alone: later ones differ by how the first was rounded.
        assert relative_error(cache[own][:, 0], truth[own][:, 0]) < 0.05
    assert (logits is None) == (true_logits is None)
    if logits is not None and true_logits is not None:
        assert relative_error(logits, true_logits) < 0.1


def test_all_graphs_leave_their_logits_in_the_same_memory(engine: Engine) -> None:
    assert engine._graphs is not None
    assert engine._prefill_graphs is not None
    assert engine._cuda is not None
    memory = engine._cuda._logits.data_ptr()
    graphs = [*engine._graphs._graphs.values(), *engine._prefill_graphs._graphs.values()]
    logits = [result[0] for graph in graphs for _, result in graph.variants.values()]
    assert {each.data_ptr() for each in logits} == {memory}
    assert {each.dtype for each in logits} == {torch.float32}


def test_what_no_graph_holds_is_enqueued_kernel_by_kernel(engine: Engine) -> None:
    graphs = engine._prefill_graphs
    assert graphs is not None
    pages = tuple(range(MAX_PAGES[1] + 1))
    prompt = Row(0, pages, 0, (1,) * 100, sample=True)
    assert graphs.shape_of([prompt]) == graphs.shapes[0]
    assert graphs.shape_of([prompt, Row(1, pages, 5, None)]) is None
    assert graphs.shape_of([Row(0, pages, 0, (1,) * (TOKENS[-1] + 1), sample=True)]) is None
    many = [Row(i, pages, 0, (1,), sample=True) for i in range(ROWS[-1] + 1)]
    assert graphs.shape_of(many[1:]) == graphs.shapes[1]
    assert graphs.shape_of(many) is None
    few, most = MAX_PAGES[ROWS[-1]] * 64, MAX_PAGES[1] * 64
    assert graphs.shape_of([prompt, Row(1, pages, few - 1, (1,), sample=True)]) == graphs.shapes[1]
    assert graphs.shape_of([prompt, Row(1, pages, few, (1,), sample=True)]) is None
    assert graphs.shape_of([Row(0, pages, most - 1, (1,), sample=True)]) == graphs.shapes[0]
    assert graphs.shape_of([Row(0, pages, most, (1,), sample=True)]) is None
