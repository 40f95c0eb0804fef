"""The replay of a trace through placement counts what is reused, and where it is."""

from bench.harness.workload.plan import Planned
from bench.prefix_placement import Replay

BLOCK = 512


def turn(at_s: float, blocks: list[int], more: int = 100) -> Planned:
    """A prompt of whole blocks and ``more`` tokens of one of its own."""
    own = int(at_s * 1_000) + 10_000
    return Planned(at_s, len(blocks) * BLOCK + more, 1, (*blocks, own), BLOCK)


def replay(plan: list[Planned], *, blind: bool = False, memory_bytes: float = 20e9) -> Replay:
    done = Replay(2, memory_bytes, 50_000.0, blind=blind)
    done.run(plan, speed=1.0)
    assert len(done.ttft_s) == len(plan)
    assert done.num_tokens == sum(planned.input_len for planned in plan)
    return done


def test_a_conversation_stays_at_a_worker_and_reuses_all_of_the_turn_before() -> None:
    plan = [turn(n, list(range(4 * n))) for n in range(1, 6)]
    done = replay(plan)
    assert done.num_reused == sum(4 * n for n in range(1, 5)) * BLOCK
    assert done.num_pulls == 0
    assert replay(plan, blind=True).num_reused < done.num_reused


def test_under_load_a_common_beginning_is_pulled_rather_than_queued_for() -> None:
    common = list(range(20))
    plan = [turn(1.0, common), turn(5.0, common), *(turn(10 + n / 1e3, common) for n in range(40))]
    done = replay(plan)
    assert done.num_pulls >= 1
    assert done.num_reused == 41 * 20 * BLOCK


def test_what_is_evicted_is_computed_again() -> None:
    common = list(range(20))
    others = [turn(n, list(range(100 * n, 100 * n + 20))) for n in range(2, 12)]
    done = replay([turn(1.0, common), *others, turn(20.0, common)], memory_bytes=1.6e9)
    assert done.num_reused == 0
