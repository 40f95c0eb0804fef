"""The engine without a model shows what was done to a kept prefix."""

from engine.batch import Binding, ForwardBatch, Keep, Row
from tests.simulation.fake_engine import FakeEngine, expected_output
from transport.wire.layout import PoolSize
from transport.wire.sampling import SamplingParams, StopRule

PROMPT = tuple(i % 61 for i in range(150))
(TRUTH,) = expected_output(PROMPT, StopRule(1))


def bound(engine: FakeEngine, slot: int) -> None:
    engine.bind(Binding(slot, PROMPT, (), SamplingParams(), StopRule(1)))


def test_a_prompt_goes_on_from_a_kept_state_and_a_copied_page() -> None:
    engine = FakeEngine(PoolSize(20, 4))
    bound(engine, 0)
    first = Row(0, range(8), 0, PROMPT[:120], keep=Keep(64, 3))
    engine.launch(ForwardBatch((first,)))
    for slot, from_slot, num_tokens in ((1, 3, 64), (2, 0, 120)):
        bound(engine, slot)
        engine.restore(slot, from_slot, num_tokens)
    engine.copy_page(7, 12)
    steps = [
        engine.launch(ForwardBatch((Row(slot, pages, start, PROMPT[start:]),)))
        for slot, pages, start in (
            (1, (0, 1, 2, 3, *range(13, 19)), 64),
            (2, (*range(7), 12, 10, 11), 120),
        )
    ]
    assert [step.result().sampled[0][0].token_id for step in steps] == [TRUTH, TRUTH]


def test_a_state_restored_from_freed_memory_shows_in_the_text() -> None:
    engine = FakeEngine(PoolSize(20, 4))
    bound(engine, 0)
    first = Row(0, range(8), 0, PROMPT[:128], sample=False, keep=Keep(64, 3))
    engine.launch(ForwardBatch((first,))).result()
    bound(engine, 1)
    engine.restore(1, 3, 64)
    engine.poison_slot(3)
    rest = Row(1, (0, 1, 2, 3, *range(13, 19)), 64, PROMPT[64:])
    assert engine.launch(ForwardBatch((rest,))).result().sampled[0][0].token_id != TRUTH
