"""What the engine promises beyond parity: bits, poison, preconditions."""

import random
from dataclasses import replace

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Keep, Row, Sampled
from engine.kernels.reference import ReferenceKernels
from engine.runner import Engine
from tests.engine.checkpoints import SHAPES, checkpoint
from tests.engine.driver import GREEDY, UNLIMITED, Driver, Request, load_engine
from transport.wire.sampling import SamplingParams, StopRule

PROMPT = tuple(random.Random(1).randrange(260) for _ in range(64 * 4 + 5))


ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=263)


def by_id(sampled: Sampled | None) -> dict[int, float]:
    assert sampled is not None
    assert sampled.logprobs is not None
    return dict(sampled.logprobs.top)


def prefill(engine: Engine, slot: int, pages: tuple[int, ...], cuts: list[int]) -> Sampled | None:
    """Compute ``PROMPT`` cut at ``cuts``; what its last chunk sampled."""
    engine.bind(Binding(slot, PROMPT, (), ALL_LOGPROBS, UNLIMITED))
    ends = [*cuts, len(PROMPT)]
    for start, end in zip([0, *cuts], ends, strict=True):
        row = Row(slot, pages, start, PROMPT[start:end], sample=end == len(PROMPT))
        outcomes = engine.launch(ForwardBatch((row,))).result().sampled[0]
    return outcomes[0] if outcomes else None


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cuts", [[64], [128, 192], [64, 128, 192, 256]])
def test_chunks_equal_one_piece_bit_for_bit(name: str, cuts: list[int]) -> None:
    engine = load_engine(checkpoint(name), kernels=ReferenceKernels(prefill_block=64))
    whole = prefill(engine, 0, tuple(range(20)), [])
    parts = prefill(engine, 1, tuple(range(60, 40, -1)), cuts)
    assert whole == parts
    cache = engine.cache
    assert torch.equal(cache.conv[0], cache.conv[1])
    assert torch.equal(cache.recurrent[0], cache.recurrent[1])
    num_pages = len(PROMPT) // engine.layout.page_size
    kv = cache.kv[:num_pages], cache.kv[range(60, 60 - num_pages, -1)]
    assert torch.equal(*kv)


@pytest.mark.parametrize("name", SHAPES)
def test_chunks_beside_other_prompts_stay_close(name: str) -> None:
    """Without blocks the same numbers up to rounding, whatever the chunks and the company."""
    engine = load_engine(checkpoint(name))
    whole = prefill(engine, 0, tuple(range(20)), [])
    parts = prefill(engine, 1, tuple(range(60, 40, -1)), [64, 192])
    engine.bind(Binding(2, PROMPT, (), ALL_LOGPROBS, UNLIMITED))
    engine.bind(Binding(3, PROMPT[:9], (), GREEDY, UNLIMITED))
    rows = (Row(3, (60,), 0, PROMPT[:9]), Row(2, tuple(range(20, 40)), 0, PROMPT))
    beside = engine.launch(ForwardBatch(rows)).result().sampled[1][0]
    for other in (parts, beside):
        assert by_id(other).keys() == by_id(whole).keys()
        assert by_id(other) == pytest.approx(by_id(whole), abs=1e-4)


def test_company_does_not_change_a_prompt() -> None:
    engine = load_engine(checkpoint("per_expert"), kernels=ReferenceKernels(prefill_block=64))
    alone = prefill(engine, 0, tuple(range(20)), [])
    engine.bind(Binding(1, PROMPT, (), ALL_LOGPROBS, UNLIMITED))
    engine.bind(Binding(2, (9,), (4,), GREEDY, UNLIMITED))
    rows = (
        Row(1, tuple(range(20, 40)), 0, PROMPT),
        Row(2, (60,), 0, (9,)),
    )
    assert engine.launch(ForwardBatch(rows)).result().sampled[0] == (alone,)


def test_a_prompt_apart_from_a_step_changes_no_bit_of_either() -> None:
    engine = load_engine(checkpoint("per_expert"), prompts_apart=True)
    pages = tuple(range(20)), tuple(range(20, 40)), tuple(range(40, 60))
    alone = prefill(engine, 0, pages[0], [])
    next_alone = engine.launch(ForwardBatch((Row(0, pages[0], len(PROMPT), None),))).result()
    prefill(engine, 1, pages[1], [])
    engine.bind(Binding(2, PROMPT, (), ALL_LOGPROBS, UNLIMITED))
    rows = Row(1, pages[1], len(PROMPT), None), Row(2, pages[2], 0, PROMPT)
    together = engine.launch(ForwardBatch(rows)).result()
    assert together.sampled == (*next_alone.sampled, (alone,))


def test_a_start_at_zero_forgets_the_slot() -> None:
    engine = load_engine(checkpoint("lean"))
    first = prefill(engine, 3, tuple(range(20)), [])
    again = prefill(engine, 3, tuple(range(20)), [])
    engine.poison_slot(3)
    engine.poison_pages(range(20))
    assert first == again == prefill(engine, 3, tuple(range(20)), [])


def test_reading_poison_shows() -> None:
    """Decoding over memory that was freed gives no token rather than a wrong one."""
    engine = load_engine(checkpoint("per_expert"))
    prefill(engine, 0, tuple(range(20)), [])
    engine.poison_pages([2])
    decode = Row(0, tuple(range(20)), len(PROMPT), None)
    assert engine.launch(ForwardBatch((decode,))).result().sampled == ((Sampled(None),),)


def test_binding_for_decode_feeds_its_last_output() -> None:
    """A sequence continued from a binding alone, as after a handoff, goes on identically."""
    engine = load_engine(checkpoint("fused"))
    request = Request(PROMPT, 6, GREEDY)
    Driver(engine).run([request])
    pages = tuple(range(20))
    first = prefill(engine, 0, pages, [])
    assert first is not None
    assert first.token_id == request.tokens[0]
    tokens = [request.tokens[0]]
    engine.bind(Binding(0, PROMPT, tuple(tokens), GREEDY, UNLIMITED))
    for i in range(5):
        step = engine.launch(ForwardBatch((Row(0, pages, len(PROMPT) + i, None),)))
        (outcome,) = step.result().sampled[0]
        assert outcome.token_id is not None
        tokens.append(outcome.token_id)
    assert tokens == request.tokens


def test_steps_may_run_ahead_of_their_results() -> None:
    engine = load_engine(checkpoint("fused"))
    request = Request(PROMPT, 4, GREEDY)
    Driver(engine).run([request])
    prefill(engine, 0, tuple(range(20)), [])
    rows = [Row(0, tuple(range(20)), len(PROMPT) + i, None) for i in range(3)]
    steps = [engine.launch(ForwardBatch((row,))) for row in rows]
    ids = [outcome.token_id for step in steps for outcome in step.result().sampled[0]]
    assert ids == request.tokens[1:]


def test_seeded_sampling_repeats_in_any_company() -> None:
    def request(seed: int) -> Request:
        params = SamplingParams(temperature=1.0, top_k=20, top_p=0.95, seed=seed)
        return Request(PROMPT[: 3 + seed], 12, params, StopRule(max_tokens=99, min_tokens=3))

    engine = load_engine(checkpoint("per_expert"))
    together = [request(seed) for seed in range(16)]
    Driver(engine).run(together)
    for seed in (0, 7, 15):
        alone = request(seed)
        Driver(engine).run([alone])
        assert alone.tokens == together[seed].tokens


def test_padding_ids_are_never_sampled() -> None:
    engine = load_engine(checkpoint("per_expert"), num_valid_ids=10)
    requests = [Request(PROMPT[:9], 30, SamplingParams(temperature=5.0, seed=s)) for s in range(4)]
    Driver(engine).run(requests)
    assert {token for request in requests for token in request.tokens} <= set(range(10))


GOOD = Row(0, (0, 1, 2, 3), 0, PROMPT[:64], sample=False)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "empty"),
        ((GOOD, GOOD), "twice"),
        ((replace(GOOD, token_ids=PROMPT[:63]),), "unaligned end"),
        ((replace(GOOD, start=1, token_ids=PROMPT[:63]),), "unaligned start"),
        ((replace(GOOD, block_table=(0, 1, 2)),), "3 of 4 pages"),
        ((replace(GOOD, block_table=(0, 1, 2, 256)),), "page ids"),
        ((replace(GOOD, state_slot=20),), "state slot 20"),
        ((replace(GOOD, token_ids=()),), "no tokens"),
        ((replace(GOOD, token_ids=None, sample=True),), "without a prompt"),
        ((replace(GOOD, keep=Keep(64, 20)),), "keeps a state in 20, of 20 slots"),
        ((replace(GOOD, keep=Keep(65, 1)),), "behind 65 of its 64 tokens"),
        ((replace(GOOD, keep=Keep(63, 1)),), "behind 63 tokens: unaligned"),
        ((replace(GOOD, keep=Keep(64, 0)),), "twice"),
        ((replace(GOOD, start=1, token_ids=None, sample=True, keep=Keep(1, 1)),), "decode that"),
        ((replace(GOOD, start=1024, block_table=tuple(range(99))),), "beyond 1024"),
    ],
)
def test_preconditions(rows: tuple[Row, ...], message: str) -> None:
    engine = load_engine(checkpoint("per_expert"))
    with pytest.raises(AssertionError, match=message):
        engine.launch(ForwardBatch(rows))
