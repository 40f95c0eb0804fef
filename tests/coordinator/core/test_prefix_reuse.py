"""What requests reuse of earlier ones: what is ordered, and what is said about it."""

import pytest

from coordinator.core.contract import SequenceRequest, Token
from coordinator.core.effects import Emit
from coordinator.core.request import Request, State
from tests.coordinator.counted import assert_counted
from tests.coordinator.desk import Desk, compute, fail
from tests.coordinator.kept import kept
from transport.wire.messages import (
    Decode,
    DropPrefix,
    Failed,
    Generate,
    PeerJoined,
    PeerLeft,
    PeerTested,
    Prefill,
    Prefilled,
    TokenOut,
)
from transport.wire.offers import Offer, PrefixesChanged, PrefixName
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed


def prefilled(desk: Desk, request: Request, num_reused: int) -> Token:
    """Its first token of this attempt, as its client gets it."""
    desk.take_effects()
    offer = Offer(request.prefill_worker, (0,), 2, 3, request.num_tokens)
    token = TokenOut("r", request.attempt, len(request.output_ids), 1)
    message = Prefilled(token, offer, 1.0, 2.0, num_reused, "gpu" if num_reused else "")
    desk.life.prefilled(request.prefill_worker, message)
    (emitted,) = [e for e in desk.take_effects() if isinstance(e, Emit)]
    return emitted.token


def test_orders_carry_the_salt_and_the_boundaries() -> None:
    desk = Desk()
    spec = SequenceRequest(
        "r", packed(range(10)), SamplingParams(), StopRule(8), salt="s", boundaries=(4, 8)
    )
    request = desk.life.submit(spec, desk.now)
    desk.prefill(request)
    orders = [order for _, order in desk.sent() if isinstance(order, Prefill | Decode)]
    assert [(order.salt, order.boundaries) for order in orders] == [("s", (4, 8))] * 2


def test_the_first_token_says_what_its_attempt_reused() -> None:
    desk = Desk()
    request = desk.submit()
    desk.life.failed(request.prefill_worker, Failed("r", 1, "preempted", "", True))
    assert prefilled(desk, request, 6).num_reused == 6
    assert (request.num_reused, request.reused) == (6, "gpu")
    desk.life.worker_lost(request.prefill_worker)
    desk.life.worker_lost(request.decode_worker)
    assert request.attempt == 3
    assert prefilled(desk, request, 0).num_reused == 0
    assert (request.num_reused, request.reused) == (6, "gpu"), "of the first token's attempt"


def keeps(desk: Desk, instance: str, ids: range | None = None) -> list[tuple[str, object]]:
    """The worker tells what it keeps; what is sent then."""
    added = () if ids is None else (kept(ids, instance),)
    desk.life.prefixes_changed(instance, PrefixesChanged(added))
    return desk.sent()


def told(messages: list[tuple[str, object]], kind: type) -> set[tuple[str, str]]:
    """Which worker of which peer."""
    return {(at, message.instance) for at, message in messages if isinstance(message, kind)}


def test_workers_that_compute_prompts_open_the_memory_of_those_that_keep_prefixes() -> None:
    desk = Desk(("p-1", "d-1"))
    assert told(keeps(desk, "d-1"), PeerJoined) == {("p-1", "d-1")}
    assert keeps(desk, "d-1") == [], "once"
    assert keeps(desk, "p-1") == [], "d-1 has it open for handoffs"
    desk.join("p-2")
    assert told(desk.introduced, PeerJoined) == {
        ("d-1", "p-2"), ("p-2", "p-1"), ("p-2", "d-1"),
    }  # fmt: skip
    assert told(keeps(desk, "p-2"), PeerJoined) == {("p-1", "p-2")}
    desk.life.worker_lost("d-1")
    assert told(desk.sent(), PeerLeft) == {("p-1", "d-1"), ("p-2", "d-1")}
    desk.life.worker_lost("p-1")
    assert told(desk.sent(), PeerLeft) == {("p-2", "p-1")}


def test_colocated_workers_open_each_others() -> None:
    desk = Desk(("b-1", "b-2"))
    assert told(desk.introduced, PeerJoined) == {("b-1", "b-2"), ("b-2", "b-1")}
    assert not told(keeps(desk, "b-1"), PeerJoined), "it is known already"
    desk.join("b-3")
    assert told(desk.introduced, PeerJoined) == {
        ("b-3", "b-1"), ("b-3", "b-2"), ("b-1", "b-3"), ("b-2", "b-3"),
    }  # fmt: skip
    desk.life.worker_lost("b-3")
    assert desk.orders() == []


def test_a_broken_pair_for_prefixes_neither_strands_a_worker_nor_keeps_handoffs_away() -> None:
    desk = Desk(("p-1", "p-2", "d-1"))
    for instance in ("p-1", "p-2", "d-1"):
        keeps(desk, instance)
    desk.now += 1.0
    for puller, exporter in (("p-1", "d-1"), ("p-2", "d-1"), ("p-1", "p-2"), ("p-2", "p-1")):
        desk.life.peer_tested(puller, PeerTested(exporter, problem="wrong bytes"))
    desk.registry.excuse(10.0)
    assert len(desk.registry.prefilling()) == 2
    request = desk.submit()
    compute(desk, request)
    assert (request.state, request.faults) == (State.FINISHED, 0)


def test_the_order_names_what_a_peer_keeps_once_the_pair_is_tested() -> None:
    desk = Desk(("d-1",))
    desk.join("p-1", num_pages=256)
    keeps(desk, "d-1", range(300))
    keeps(desk, "p-1")
    desk.submit("untested", 400)
    desk.life.peer_tested("p-1", PeerTested("d-1", 100, 0.1))
    desk.submit("tested", 400)
    desk.submit("scored", 400, SamplingParams(prompt_logprobs=0))
    orders = [order for _, order in desk.sent() if isinstance(order, Prefill)]
    assert [order.prefix for order in orders] == [None, kept(range(300), "d-1").offer, None]
    assert desk.registry.require("p-1").load.tokens_ahead == 400 + 100 + 400


def test_a_decode_worker_that_stands_in_pulls_what_it_may_pull_for_handoffs() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    keeps(desk, "p-1", range(300))
    keeps(desk, "d-2", range(300))
    desk.life.worker_draining(desk.registry.require("p-1"))
    desk.life.worker_draining(desk.registry.require("d-2"))
    desk.submit("r", 400)
    ((at, order),) = desk.orders()
    assert (at, type(order), order.prefix.instance) == ("d-1", Generate, "p-1")


def test_after_nan_the_next_attempt_reuses_nothing() -> None:
    desk = Desk(("p-1", "d-1"))
    keeps(desk, "p-1", range(300))
    request = desk.submit("r", 400)
    assert request.num_expected == 300
    desk.life.failed("p-1", Failed("r", 1, "not_finite", "nan", True))
    orders = [order for _, order in desk.sent() if isinstance(order, Prefill)]
    assert (request.attempt, request.num_expected) == (2, 0)
    assert orders[0].salt == "" != orders[1].salt


@pytest.mark.parametrize("again", [False, True], ids=["finite", "again"])
def test_a_peer_is_told_of_its_prefix_once_the_request_is_finite_without_it(again: bool) -> None:
    desk = Desk(("p-1", "p-2", "d-1"))
    for instance in ("p-1", "p-2"):
        keeps(desk, instance)
    bad = kept(range(300), "d-1")
    keeps(desk, "d-1", range(300))
    for instance in ("p-1", "p-2"):
        desk.life.peer_tested(instance, PeerTested("d-1"))
    request = desk.submit("r", 400)
    assert request.prefix_from == "d-1"
    named = PrefixName(bad.key, bad.pages_key, 300)
    failed = Failed("r", 1, "not_finite", "nan", True, named)
    desk.life.failed(request.prefill_worker, failed)
    if again:
        fail(desk, request, "not_finite")
    else:
        desk.prefill(request)
    dropped = [sent for sent in desk.sent() if isinstance(sent[1], DropPrefix)]
    assert dropped == ([] if again else [("d-1", DropPrefix(named))]), "it may be the request's own"


def test_after_a_copy_that_did_not_end_the_next_attempt_pulls_no_prefix() -> None:
    desk = Desk(("p-1", "d-1"))
    keeps(desk, "p-1")
    keeps(desk, "d-1", range(300))
    desk.life.peer_tested("p-1", PeerTested("d-1"))
    desk.submit("r", 400)
    desk.life.failed("p-1", Failed("r", 1, "pull_timeout", "the copy did not finish", True))
    orders = [order for _, order in desk.sent() if isinstance(order, Prefill)]
    assert [order.prefix is not None for order in orders] == [True, False]


def test_a_copy_that_did_not_end_is_the_fault_of_both_and_costs_hits_only() -> None:
    desk = Desk(("p-1", "d-1"))
    keeps(desk, "p-1")
    keeps(desk, "d-1", range(300))
    desk.life.peer_tested("p-1", PeerTested("d-1"))
    for name in ("r", "s", "t", "u"):
        desk.submit(name, 400)
        desk.life.failed("p-1", Failed(name, 1, "pull_timeout", "the copy did not finish", True))
    orders = [order for _, order in desk.sent() if isinstance(order, Prefill)]
    assert [order.request_id for order in orders if order.prefix is not None] == ["r"]
    assert desk.registry.prefix_pairs.broken_of("p-1").keys() == {"d-1"}
    assert not desk.registry.pairs.broken_of("p-1"), "handoffs go on"


def test_what_a_worker_kept_goes_with_it_and_comes_back_as_it_says() -> None:
    desk = Desk(("b-1",))
    keeps(desk, "b-1", range(300))
    desk.life.worker_lost("b-1")
    desk.join("b-1")
    assert desk.submit("r", 400).num_expected == 0
    keeps(desk, "b-1", range(200))
    assert desk.submit("s", 400).num_expected == 200


def test_prompts_are_coming_until_their_first_token_or_their_end() -> None:
    desk = Desk(())
    desk.join("b-1", num_pages=256)
    keeps(desk, "b-1")
    done, failed, left = (desk.submit(f"r{n}", 600) for n in range(3))
    worker = desk.registry.require("b-1")
    assert [r.num_expected for r in (done, failed, left)] == [0, 592, 592]
    assert worker.load.tokens_ahead == 600 + 8 + 8
    assert len(worker.load.pending_prefixes.requests) == 3
    desk.begin(done)
    desk.life.cancel(left)
    assert worker.load.pending_prefixes.requests == {"r1"}
    desk.life.failed("b-1", Failed("r1", 1, "too_long", "", False))
    assert worker.load.pending_prefixes.requests == set()
    assert_counted(worker)
