"""What crosses the border between the pools, and when."""

import pytest

from coordinator.core.pool_targets import PoolTargets
from coordinator.core.request import Request, State
from coordinator.core.soft_pools import GATHER_SHARE, IDLE_S, PAIR_IDLE_S, Site, SoftPools
from tests.coordinator.desk import Desk, grown
from tests.coordinator.speeds import FixedSpeeds
from transport.wire.messages import Decode, Generate, Move, Prefill, Settled
from transport.wire.offers import Offer
from transport.wire.spread import SpreadCounts

TARGETS = PoolTargets(ttft_s=1.0, tpot_s=0.02)


def soft(
    tok_s: float = 10_000.0, targets: PoolTargets = TARGETS, each_s: float = 0.000_1
) -> SoftPools:
    return SoftPools(targets, FixedSpeeds(tok_s, each_s=each_s))


# ---- the decisions


def test_a_decode_worker_helps_while_prompts_wait_and_its_own_sequences_keep_their_pace() -> None:
    found, there = soft(targets=PoolTargets(1.0, 0.05)), Site("d", 20)
    assert not found.helps(5_000, there, 500, 0.0), "a short wait"
    assert found.helps(6_500, there, 500, 0.0)
    assert not found.helps(6_500, Site("d", 20, tokens_ahead=5_000), 500, 0.0), (
        "as long a wait there"
    )
    assert not soft().helps(6_500, there, 500, 0.0), "its steps take 60 % of the target"


def test_a_decode_worker_helps_a_patient_request_later() -> None:
    found, there = soft(targets=PoolTargets(1.0, 0.05)), Site("d", 20)
    waits = [6_500, 12_500]
    assert [found.helps(each, there, 500, 0.0) for each in waits] == [True, True]
    assert [found.helps(each, there, 500, 0.0, 2.0) for each in waits] == [False, True]


def test_a_decode_worker_helps_early_where_more_prompts_wait_than_it_has_sequences() -> None:
    found = soft(targets=PoolTargets(1.0, 0.05))
    assert [found.may_help(tokens, 1) for tokens in (2_000, 3_000)] == [False, True]
    assert not found.helps(2_000, Site("d", 1), 500, 0.0), "a very short wait"
    assert [found.helps(3_000, Site("d", n), 500, 0.0) for n in (1, 5, 6)] == [True, True, False]
    assert not found.helps(3_000, Site("d", 1, tokens_ahead=2_000), 500, 0.0)


def test_a_decode_worker_without_sequences_helps_at_once() -> None:
    found, idle = soft(), Site("d", 0)
    assert [found.may_help(tokens, 0) for tokens in (0, 1)] == [False, True]
    assert [found.helps(tokens, idle, 500, 0.0) for tokens in (700, 800)] == [False, True]


def test_workers_that_got_no_prompt_for_long_are_forgotten() -> None:
    found = soft()
    for number in range(100):
        found.note_prompt(f"d-{number}", 500, 100.0 * number)
    assert len(found._given) == 1


def test_prompts_that_it_was_given_lately_count() -> None:
    found = soft(targets=PoolTargets(1.0, 0.05))
    there = Site("d", 20)
    assert found.helps(7_000, there, 500, 0.0)
    found.note_prompt("d", 9_000, 0.0)
    assert not found.helps(7_000, there, 500, 0.1)
    assert found.helps(7_000, there, 500, 20.0)


def test_prompts_count_no_more_once_roles_have_changed() -> None:
    found, here, there = soft(), Site("p", 20, tokens_ahead=2_000), Site("d", 20)
    found.note_prompt("d", 13_000, 0.0)
    assert not found.releases(here, there, 0.0)
    found.roles_changed()
    found.note_prompt("p", 3_000, 0.0)
    assert found.releases(here, there, 0.0)


def test_a_prefill_worker_keeps_a_sequence_where_decode_workers_are_slow_and_no_prompts_wait() -> (
    None
):
    found = soft()
    slow = Site("d", 60)
    assert found.keeps(Site("p", 3), slow, 0.0)
    assert not found.keeps(Site("p", 3), Site("d", 10), 0.0)
    assert not found.keeps(Site("p", 3, tokens_ahead=6_000), slow, 0.0)
    assert not found.keeps(Site("p", 61), slow, 0.0)
    found.note_prompt("p", 9_000, 0.0)
    assert not found.keeps(Site("p", 3), slow, 0.1), "its prompts would slow it down"


def test_a_kept_sequence_leaves_when_prompts_wait_or_its_steps_are_faster_elsewhere() -> None:
    found = soft()
    kept, slow = Site("p", 10), Site("d", 40)
    assert not found.releases(kept, slow, 0.0)
    assert found.releases(Site("p", 10, tokens_ahead=6_000), slow, 0.0)
    assert not found.releases(Site("p", 10, tokens_ahead=6_000), Site("d", 150), 0.0)
    assert not found.releases(kept, Site("d", 5), 0.0), "hardly faster"
    assert found.releases(Site("p", 60), Site("d", 10), 0.0)
    assert found.releases(Site("p", 100), slow, 0.0), "it has become slow here"


def test_a_prefill_worker_takes_sequences_only_for_shorter_steps_and_without_prompts() -> None:
    found, slow = soft(each_s=0.000_5), Site("d", 40)
    assert found.takes(Site("p", 3), slow, 1.0)
    found.note_prompt("p", 9_000, 0.0)
    assert found.takes(Site("p", 3), slow, 1.0), "its prompts are computed"
    assert not found.takes(Site("p", 3, tokens_ahead=1), slow, 1.0)
    assert not found.takes(Site("p", 35), slow, 1.0), "hardly shorter"
    assert not found.takes(Site("p", 3), slow, 0.05), "between two prompts"


def test_it_does_not_take_what_it_would_release() -> None:
    found = soft(each_s=0.000_5)
    for there in range(60):
        for here in range(60):
            if found.takes(Site("p", here), Site("d", there), 1.0):
                assert not found.releases(Site("p", here + 1), Site("d", there - 1), 0.0)


def test_a_prefill_worker_that_lends_for_spread_steps_decodes_nothing_itself() -> None:
    found = soft()
    slow = Site("d", 60, has_lenders=True)
    assert not found.keeps(Site("p", 3), slow, 0.0)
    assert not found.takes(Site("p", 0), slow, 10.0)
    assert found.releases(Site("p", 1), slow, 0.0)


def test_a_prefill_worker_of_a_pair_decodes_only_while_no_prompts_come() -> None:
    found = soft(each_s=0.000_5)
    slow = Site("d", 60, in_pair=True)
    assert not found.keeps(Site("p", 3), slow, 0.0), "its steps take as long"
    assert not found.takes(Site("p", 3), slow, IDLE_S), "between two prompts"
    assert found.takes(Site("p", 3), slow, PAIR_IDLE_S)
    few = Site("p", 3, tokens_ahead=100)
    assert not found.releases(few, slow, 0.0), "for a single prompt"
    found.note_prompt("p", 9_000, 0.0)
    assert found.releases(few, slow, 0.1), "prompts come, and it has not even shorter steps"
    assert not found.releases(few, Site("d", 60), 0.1), "it has: they are no pair"


def test_before_the_speed_is_known_a_worker_without_sequences_helps_with_a_burst() -> None:
    found = soft(tok_s=0.0)
    assert found.may_help(0, 0)
    assert found.helps(1_500, Site("d", 0, tokens_ahead=500), 500, 0.0)
    assert not found.helps(500, Site("d", 0), 500, 0.0), "the prefill worker is as free"
    assert not found.helps(1_500, Site("d", 0, tokens_ahead=1_000), 500, 0.0)
    assert not found.helps(10**6, Site("d", 1), 500, 0.0), "its sequence would be slowed down"


def test_prompts_are_gathered_beside_slow_steps_for_a_part_of_their_target() -> None:
    found, there = soft(), Site("p", 20)
    assert found.gathers(there, 500, 1_000, 0.0, 0.0)
    assert not found.gathers(Site("p", 0), 500, 1_000, 0.0, 0.0), "nothing is decoded there"
    assert not found.gathers(there, 4_096, 5_000, 0.0, 0.0), "as fast alone"
    assert not found.gathers(there, 500, 8_192, 0.0, 0.0), "a full batch"
    assert not found.gathers(there, 500, 1_000, found.gather_s, 0.0), "it has waited enough"
    fast = soft(targets=PoolTargets(1.0, 0.05))
    assert not fast.gathers(there, 500, 1_000, 0.0, 0.0), "fast steps"


# ---- as requests are placed


def desk(
    tok_s: float = 200.0, tpot_s: float = 10.0, workers=("p-1", "d-1"), each_s: float = 0.000_1
) -> Desk:
    found = Desk((), any_role=True, soft=soft(tok_s, PoolTargets(1.0, tpot_s), each_s))
    for instance in workers:
        found.join(instance)
    for puller in workers:
        for peer in workers:
            if puller != peer:
                found.tested(peer, puller)
    found.sent()
    return found


def decoded(at: Desk, name: str) -> Request:
    request = at.submit(name)
    at.prefill(request)
    at.land(request)
    assert request.state is State.DECODING
    return request


def test_a_prompt_that_would_wait_is_computed_beside_decode_steps() -> None:
    site = desk()
    first = site.submit("first", length=100)
    second = site.submit("second", length=40)
    sent = {
        m.request_id: (at, type(m)) for at, m in site.sent() if isinstance(m, Prefill | Generate)
    }
    assert sent == {"first": ("p-1", Prefill), "second": ("d-1", Generate)}
    site.begin(second)
    assert (second.state, second.decode_worker) == (State.DECODING, "d-1")
    assert first.prefill_worker == "p-1"


def test_without_soft_pools_or_with_workers_of_one_role_it_waits() -> None:
    for site in (Desk(("p-1", "d-1")), Desk(("p-1", "d-1"), soft=soft(200.0))):
        site.submit("first", length=100)
        assert site.submit("second", length=40).prefill_worker == "p-1"


def test_a_sequence_is_decoded_where_its_prompt_was_computed_if_steps_are_slow_elsewhere() -> None:
    site = desk(tok_s=10**6, tpot_s=0.05, each_s=0.01)
    assert decoded(site, "first").decode_worker == "d-1"
    site.sent()
    request = decoded(site, "r")
    assert request.decode_worker == request.prefill_worker == "p-1"
    assert [at for at, m in site.sent() if isinstance(m, Decode)] == ["p-1"]
    site.step(request, finish="length")
    assert request.state is State.FINISHED
    assert not site.registry.require("p-1").load.requests


@pytest.mark.parametrize("num_members", [2, 3])
def test_a_sequence_is_decoded_by_a_group_that_spreads_its_steps_if_they_are_slow(
    num_members: int,
) -> None:
    site = desk(tok_s=10**6, tpot_s=0.05, each_s=0.01)
    decoded(site, "first")
    spread_steps(site, num_members, "d-1")
    assert decoded(site, "r").decode_worker == "d-1"
    counts = SpreadCounts(num_members=num_members, num_steps=9, num_local=9)
    site.registry.require("d-1").spread.note(counts, site.now)
    assert decoded(site, "s").decode_worker == "p-1"


def spread_steps(site: Desk, num_members: int, *names: str) -> None:
    """Report that these workers have taken steps of a group of so many."""
    for name in names:
        for num_steps in (0, 9):
            counts = SpreadCounts(num_members=num_members, num_steps=num_steps)
            site.registry.require(name).spread.note(counts, site.now)


def test_it_moves_when_prompts_wait() -> None:
    site = desk(tok_s=10**6, tpot_s=0.05, each_s=0.01)
    decoded(site, "first")
    request = decoded(site, "r")
    slow = soft(150.0, PoolTargets(1.0, 0.05), each_s=0.01)
    site.life._dispatcher._border._soft = slow
    site.now += 2.0
    site.submit("prompt", length=100)
    (moved,) = [m for _, m in site.sent() if isinstance(m, Move)]
    assert moved.request_id == "r"
    offer = Offer("p-1", (0,), 2, 3, request.num_tokens - 1)
    site.life.settled("p-1", Settled("r", request.attempt, offer))
    site.land(request)
    assert request.decode_worker == "d-1"


def test_a_prefill_worker_without_prompts_takes_the_youngest_sequences() -> None:
    site = desk(tok_s=10**6, tpot_s=10.0, each_s=0.01)
    requests = [decoded(site, name) for name in "abcd"]
    assert {request.decode_worker for request in requests} == {"d-1"}
    site.life._dispatcher._border._soft = soft(10**6, PoolTargets(1.0, 0.05), each_s=0.01)
    site.sent()
    site.now += 2.0
    site.life.tick()
    assert [m.request_id for _, m in site.sent() if isinstance(m, Move)] == ["d", "c"], (
        "two would be as slow there as the two that stay"
    )
    moved = requests[3]
    offer = Offer("d-1", (0,), 2, 3, moved.num_tokens - 1)
    site.life.settled("d-1", Settled("d", moved.attempt, offer))
    site.land(moved)
    assert moved.decode_worker == "p-1"
    assert (moved.num_moves, moved.attempt) == (1, 1)


def test_it_takes_sequences_of_a_decode_worker_that_is_short_of_pages() -> None:
    site = desk(tok_s=10**6, tpot_s=10.0, each_s=0.01)
    oldest, *_ = [decoded(site, name) for name in "abcd"]
    load = site.registry.require("d-1").load
    grown(site, oldest, load.free_pages - 1)
    assert load.is_short_of_pages
    site.life._dispatcher._border._soft = soft(10**6, PoolTargets(1.0, 0.05), each_s=0.01)
    site.now += 2.0
    site.life.tick()
    assert [m.request_id for _, m in site.sent() if isinstance(m, Move)] == ["d", "c"]


def test_it_takes_none_while_it_has_prompts() -> None:
    site = desk(tok_s=10**6, tpot_s=10.0, each_s=0.01)
    for name in "abcd":
        decoded(site, name)
    site.submit("prompt", length=100)
    site.life._dispatcher._border._soft = soft(10**6, PoolTargets(1.0, 0.05), each_s=0.01)
    site.now += 2.0
    site.life.tick()
    assert not [m for _, m in site.sent() if isinstance(m, Move)]


def test_prompts_are_gathered_until_the_oldest_has_waited_enough() -> None:
    site = desk(tok_s=10**6, tpot_s=0.025, each_s=0.01)
    decoded(site, "first")
    kept = decoded(site, "r")
    assert kept.decode_worker == "p-1"
    older, newer = site.submit("older", length=100), site.submit("newer", length=100)
    assert (older.state, newer.state) == (State.QUEUED, State.QUEUED)
    site.step(kept)
    assert older.state is State.QUEUED
    site.now += GATHER_SHARE + 0.01
    site.step(kept)
    assert (older.state, newer.state) == (State.PREFILLING, State.PREFILLING)


def test_prompts_of_a_pair_are_gathered_for_the_sequences_of_the_other_worker_too() -> None:
    site = desk(tok_s=10**6, tpot_s=0.025, each_s=0.01)
    assert decoded(site, "first").decode_worker == "d-1"
    assert site.submit("at once", length=10).state is State.PREFILLING
    spread_steps(site, 2, "p-1", "d-1")
    prompt = site.submit("prompt", length=100)
    assert prompt.state is State.QUEUED
    site.now += GATHER_SHARE + 0.01
    site.life.tick()
    assert prompt.state is State.PREFILLING


def test_gathered_prompts_begin_when_nothing_is_decoded_there_any_more() -> None:
    site = desk(tok_s=10**6, tpot_s=0.025, each_s=0.01)
    decoded(site, "first")
    kept = decoded(site, "r")
    prompt = site.submit("prompt", length=100)
    assert prompt.state is State.QUEUED
    site.step(kept, finish="length")
    assert prompt.state is State.PREFILLING


def test_prompts_are_not_gathered_where_all_workers_do_both() -> None:
    site = desk(tok_s=10**6, tpot_s=0.025, each_s=0.01)
    decoded(site, "first")
    decoded(site, "r")
    site.registry.require("p-1").role = "decode"
    prompt = site.submit("prompt", length=100)
    assert prompt.state is State.PREFILLING


def test_gathered_prompts_of_a_pair_begin_at_the_same_time_where_both_do_both() -> None:
    site = desk(tok_s=10**6, tpot_s=0.025, each_s=0.01)
    decoded(site, "first")
    decoded(site, "r")
    spread_steps(site, 2, "p-1", "d-1")
    site.registry.require("p-1").role = "decode"
    prompts = [site.submit(name, length=100) for name in "ab"]
    assert {prompt.state for prompt in prompts} == {State.QUEUED}
    site.now += GATHER_SHARE + 0.01
    site.life.tick()
    assert {prompt.state for prompt in prompts} == {State.PREFILLING}
    assert {prompt.prefill_worker for prompt in prompts} == {"p-1", "d-1"}
