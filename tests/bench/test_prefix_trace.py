"""Traces replayed through the prefix cache."""

from bench.harness.workload.plan import Planned
from bench.prefix_trace import BLOCK_LEN, PAGE_SIZE
from bench.replayed_caches import BlockLru, Prefixes, Request
from bench.trace_tokens import Turn, continues, turns
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.prefix import PrefixKeys

LAYOUT = CacheLayout("bfloat16", PAGE_SIZE, *[1] * 9)


def planned(at_s: float, input_len: int, *blocks: int) -> Planned:
    return Planned(at_s, input_len, 100, blocks, BLOCK_LEN)


CONVERSATION = [
    planned(0, 1100, 1, 2, 3),
    planned(1, 900, 7, 8),
    planned(2, 1500, 1, 2, 4),  # the next turn of the first
    planned(3, 1150, 1, 2, 5),  # shorter than that with its answer
]


def request(turn: Turn) -> Request:
    return Request(
        turn.prompt,
        PrefixKeys("model", "", turn.prompt, PAGE_SIZE),
        PrefixKeys("model", "", turn.whole, PAGE_SIZE),
        PrefixKeys("model", "", turn.whole, BLOCK_LEN),
    )


def test_a_prompt_that_begins_with_all_of_an_earlier_one_is_its_next_turn() -> None:
    assert continues(CONVERSATION) == [None, None, 0, None]


def test_what_many_prompts_begin_with_is_no_conversation() -> None:
    shared = [planned(0, 1100, 1, 2, 3), planned(1, 1060, 1, 2, 9), planned(2, 1500, 1, 2, 4)]
    assert continues(shared)[2] is None


def test_exact_ids_are_shared_where_blocks_are() -> None:
    first, other, second, _ = turns(CONVERSATION, continued=False)
    assert [len(first.prompt), len(first.whole), len(second.prompt)] == [1100, 1200, 1500]
    assert first.prompt[:1024] == second.prompt[:1024] != other.prompt[:1024]
    assert first.prompt[1024:1030] != second.prompt[1024:1030]


def test_a_continued_turn_begins_with_the_prompt_and_the_answer_before_it() -> None:
    first, _, second, third = turns(CONVERSATION, continued=True)
    assert second.prompt[:1200] == first.whole
    assert third.prompt[:1024] == first.whole[:1024]
    assert third.prompt[1024:1030] != first.whole[1024:1030]


def test_an_lru_of_blocks_has_whole_blocks_and_the_same_prompt() -> None:
    first, other, second, _ = map(request, turns(CONVERSATION, continued=False))
    cache = BlockLru(8, BLOCK_LEN, answers=False)
    assert [cache.serve(each) for each in (first, other, second, second)] == [0, 0, 1024, 1499]
    small = BlockLru(2, BLOCK_LEN, answers=False)
    assert [small.serve(each) for each in (first, other, second)] == [0, 0, 0]


def test_the_prefix_cache_has_an_answer_in_the_next_turn() -> None:
    first, other, second, _ = map(request, turns(CONVERSATION, continued=True))
    cache = Prefixes(LAYOUT, PoolSize(200, 20), 0, 256)
    assert [cache.serve(each) for each in (first, other, second)] == [0, 0, 1199]
    assert cache.check() == ""


def test_the_host_has_what_the_device_evicted() -> None:
    first, other, second, _ = map(request, turns(CONVERSATION, continued=True))
    hosted = Prefixes(LAYOUT, PoolSize(26, 3), 10_000_000, 256)
    hosted._host.ahead = PoolSize(26, 3)
    alone = Prefixes(LAYOUT, PoolSize(26, 3), 0, 256)
    served = [[cache.serve(each) for each in (first, other, second)] for cache in (alone, hosted)]
    assert served == [[0, 0, 0], [0, 0, 1199]]
    assert hosted.check() == alone.check() == ""
