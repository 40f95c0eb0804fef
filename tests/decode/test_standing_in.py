"""Prompts at a decode worker, beside what it pulls and what it decodes."""

import pytest

from tests.decode.test_room import PAGE, Site
from tests.simulation.fake_engine import expected_output
from transport.wire.messages import Cancel, Generate, Prefilled, Tokens
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import LOST
from transport.wire.token_ids import packed, to_wire


def generate(site: Site, name: str, arrival: int, length: int, max_tokens: int = 1000) -> None:
    prompt = to_wire(packed(i % 64 for i in range(length)))
    stop = StopRule(max_tokens)
    site.pool.handle(Generate(name, 1, arrival, prompt, length, SamplingParams(), stop))


def output(site: Site, name: str) -> list[int]:
    told = [m.token for m in site.sent if isinstance(m, Prefilled)]
    told += [t for m in site.sent if isinstance(m, Tokens) for t in m.tokens]
    return [token.token_id for token in told if token.request_id == name]


def all_free(site: Site) -> bool:
    gauges, pools = site.pool.gauges(), site.engine.pools
    free = gauges.free_pages, gauges.free_state_slots
    return site.pool.empty and free == (pools.num_pages, pools.num_state_slots)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_prompt_is_computed_and_decoded_in_its_own_pages(lookahead: int) -> None:
    site = Site(num_pages=40, lookahead=lookahead)
    site.start("pulled", 1, PAGE - 1)
    generate(site, "r", 2, 70, max_tokens=30)
    site.steps(40)
    assert output(site, "r") == expected_output(tuple(i % 64 for i in range(70)), StopRule(30))
    assert site.num_tokens("pulled") > 30, "it went on beside the prompt"
    (prefilled,) = [m for m in site.sent if isinstance(m, Prefilled)]
    assert prefilled.offer is None
    site.pool.handle(Cancel("pulled", 1))
    site.steps(2)
    assert all_free(site)


def test_beside_running_sequences_a_prompt_comes_in_bounded_pieces() -> None:
    site = Site(num_pages=60)
    site.start("pulled", 1, PAGE - 1)
    before = site.num_tokens("pulled")
    generate(site, "r", 2, 200)
    site.steps(3)  # pieces of 64 tokens
    assert not output(site, "r")
    site.steps(1)
    assert len(output(site, "r")) == 1
    assert site.num_tokens("pulled") == before + 4, "a token each round"


def test_a_prompt_is_admitted_only_beside_room_for_what_is_being_pulled() -> None:
    site = Site(num_pages=2 + 3)
    site.ask("pulled", 1, 2 * PAGE - 1)
    site.steps(1)
    generate(site, "r", 2, 3 * PAGE)
    site.steps(2)
    assert site.pool.gauges().waiting == 2, "a page must be left for the growth of the other"
    site.pulls[-1].finished = True
    site.pool.handle(Cancel("pulled", 1))
    site.steps(2)
    assert output(site, "r")


def test_a_handoff_is_pulled_only_beside_room_for_prompts_that_will_grow() -> None:
    site = Site(num_pages=3 + 2)
    generate(site, "r", 1, 3 * PAGE)
    site.pool.step()
    site.ask("pulled", 2, 2 * PAGE - 1)
    site.steps(1)
    assert not site.pulls


@pytest.mark.parametrize("youngest", ["prompt", "handoff"])
def test_the_youngest_that_is_on_its_way_is_preempted_first(youngest: str) -> None:
    site = Site(num_pages=60)
    arrivals = {"prompt": 3, "handoff": 2} if youngest == "prompt" else {"prompt": 2, "handoff": 3}
    generate(site, "prompt", arrivals["prompt"], 40 * PAGE)  # two batches do not compute all
    site.steps(1)
    site.ask("handoff", arrivals["handoff"], PAGE - 1)
    site.steps(1)
    assert site.pool._room.reclaim(1)
    other = "handoff" if youngest == "prompt" else "prompt"
    assert site.failures() == [(youngest, "preempted", True)]
    assert site.pool._room.reclaim(1)
    assert site.failures()[1:] == [(other, "preempted", True)]
    assert not site.pool._room.reclaim(1)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("end", ["give_back", LOST])
def test_everything_is_given_back_or_dropped(end: str, lookahead: int) -> None:
    site = Site(num_pages=80, lookahead=lookahead)
    site.start("running", 1, PAGE - 1)
    site.ask("receiving", 2, PAGE - 1)
    generate(site, "filling", 3, 250)
    site.steps(1)
    for number in range(8):
        generate(site, f"waiting-{number}", 4 + number, 20 * PAGE)
    site.ask("pending", 12, 20 * PAGE)
    held = {name for name, _ in site.pool.held()}
    assert len(held) == 12
    if end == LOST:
        site.pool.handle(LOST)
    else:
        site.pool.fail_all()
    assert site.pool.held() == ()
    assert {name for name, code, _ in site.failures() if code == "draining"} == (
        held if end == "give_back" else set()
    )
    site.pulls[-1].finished = True
    site.steps(2)
    assert all_free(site)


def test_a_worker_without_a_peer_takes_part_once_it_has_a_prompt() -> None:
    site = Site(num_pages=10)
    site.pool._room.transfers.drop_peers()
    assert not site.pool.ready
    generate(site, "r", 1, PAGE)
    assert site.pool.ready
