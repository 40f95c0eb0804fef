"""Which decode worker may pull from which prefill worker, and which workers are of no use."""

from unittest.mock import Mock

from coordinator.core.request import State
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import HubSettings, PlacementLimits
from coordinator.core.workers.membership import Membership
from coordinator.core.workers.pairs import Pairs
from coordinator.core.workers.registry import Registry
from tests.coordinator.desk import LAYOUT, Desk
from transport.wire.layout import PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Decode, Hello, PeerTested, Prefill, Refused, Targets, Welcome


def test_only_a_usable_pair_is_used_and_its_end_forgets_it() -> None:
    pairs = Pairs()
    assert not pairs.usable("p-1", "d-1")
    pairs.report("p-1", "d-1", "", now=1.0)
    pairs.report("p-1", "d-2", "wrong bytes", now=1.0)
    assert pairs.usable("p-1", "d-1")
    assert not pairs.usable("p-1", "d-2")
    pairs.report("p-1", "d-2", "", now=2.0)
    assert pairs.usable("p-1", "d-2")
    pairs.forget("p-1")
    assert not pairs.usable("p-1", "d-1")
    assert not pairs.usable("p-1", "d-2")


def test_a_worker_with_only_broken_pairs_with_live_partners_is_stranded() -> None:
    pairs = Pairs()
    pairs.report("p-1", "d-1", "wrong bytes", now=5.0)
    assert pairs.stranded("d-1", {}) == ""
    assert pairs.stranded("d-1", {"p-1": 5.0}) == "", "it may have died before the test"
    assert pairs.stranded("d-1", {"p-1": 6.0}) == "wrong bytes"
    assert pairs.stranded("d-1", {"p-1": 6.0}, reported_before=4.0) == "", "too early to say"
    assert pairs.stranded("d-1", {"p-1": 6.0, "p-2": 6.0}) == "", "untested with p-2"
    pairs.report("p-2", "d-1", "", now=5.0)
    assert pairs.stranded("d-1", {"p-1": 6.0, "p-2": 6.0}) == ""
    assert pairs.stranded("p-1", {"d-1": 6.0}) == "wrong bytes"


def test_a_pair_that_works_in_one_direction_strands_nobody() -> None:
    """Workers of any role test each other in both."""
    pairs = Pairs()
    pairs.report("p-1", "d-1", "", now=5.0)
    pairs.report("d-1", "p-1", "wrong bytes", now=5.0)
    assert pairs.usable("p-1", "d-1")
    assert not pairs.broken("p-1", "d-1")
    assert pairs.broken("d-1", "p-1")
    for instance, partner in (("p-1", "d-1"), ("d-1", "p-1")):
        assert pairs.stranded(instance, {partner: 6.0}) == ""


def test_a_broken_pair_gets_no_request_while_others_do() -> None:
    desk = Desk()
    desk.tested("p-1", "d-1", problem="wrong bytes")
    desk.tested("p-2", "d-2", problem="wrong bytes")
    for number in range(8):
        request = desk.submit(f"r{number}")
        desk.prefill(request)
        partner = {"p-1": "d-2", "p-2": "d-1"}[request.prefill_worker]
        assert request.decode_worker == partner


def test_a_prefill_worker_that_no_decode_worker_can_read_gets_no_prompt() -> None:
    desk = Desk()
    for decode in ("d-1", "d-2"):
        desk.now += 1.0
        desk.tested("p-1", decode, problem="wrong bytes")
    for worker in desk.registry.all():
        worker.heard_at = desk.now + 1.0
    assert {desk.submit(f"r{i}").prefill_worker for i in range(4)} == {"p-2"}


def test_a_handoff_waits_for_its_pair_and_holds_no_other_up() -> None:
    desk = Desk()
    desk.registry.pairs.forget("p-1")
    requests = [desk.submit(f"r{i}") for i in range(2)]
    first, second = sorted(requests, key=lambda r: r.prefill_worker)
    desk.sent()
    desk.prefill(first)
    assert desk.sent() == []
    desk.prefill(second)
    assert [type(message) for _, message in desk.sent()] == [Decode]
    assert first.state is State.HANDOFF
    desk.tested("p-1", "d-2")
    assert [(at, type(m)) for at, m in desk.sent()] == [("d-2", Decode)]


def test_a_long_handoff_waits_for_the_test_of_the_worker_that_can_hold_it() -> None:
    desk = Desk(("p-1", "d-1"))
    export = MemoryExport("shm", "d-2", 1, LAYOUT, PoolSize(8, 4))
    desk.registry.add(Hello("d-2", "decode", "m", "cpu", 1, 128, 4, export), desk.now)
    desk.tested("p-1", "d-2")
    desk.registry.pairs.forget_pair("p-1", "d-1")
    long, short = desk.submit("long", length=150), desk.submit("short")
    desk.prefill(long)
    assert long.decode_worker == "", "not the small one, whatever is proved"
    desk.prefill(short)
    assert short.decode_worker == "d-2"
    desk.tested("p-1", "d-1")
    assert long.decode_worker == "d-1"


def test_a_handoff_without_room_holds_up_only_handoffs_to_the_same_workers() -> None:
    desk = Desk()
    desk.tested("p-1", "d-2", problem="wrong bytes")
    desk.tested("p-2", "d-1", problem="wrong bytes")
    desk.registry.get("p-2").draining = True
    for number in range(4):
        running = desk.submit(f"running{number}")
        desk.prefill(running)
        desk.land(running)
    older = desk.submit("older")
    desk.prefill(older)
    assert older.decode_worker == "", "d-1 has no state slot left"
    desk.registry.get("p-2").draining = False
    desk.registry.get("p-1").draining = True
    younger = desk.submit("younger")
    desk.prefill(younger)
    assert younger.decode_worker == "d-2"
    desk.step(running, finish="length")
    assert older.decode_worker == "d-1"


def test_a_younger_handoff_does_not_take_what_an_older_one_waits_for() -> None:
    desk = Desk(("p-1", "d-1", "d-2"))
    desk.registry.get("d-2").draining = True
    running = desk.submit("running", 400)
    desk.prefill(running)
    desk.land(running)
    long, short = desk.submit("long", 700), desk.submit("short", 10)
    desk.prefill(long)
    assert long.decode_worker == "", "64 pages do not hold both"
    desk.prefill(short)
    assert short.decode_worker == "", "it would fit, but it is younger"
    desk.registry.get("d-2").draining = False
    desk.tested("p-1", "d-2")
    assert (long.decode_worker, short.decode_worker) == ("d-2", "d-1")


def test_a_draining_decode_worker_is_no_partner() -> None:
    desk = Desk()
    desk.tested("p-1", "d-1", problem="wrong bytes")
    for worker in desk.registry.all():
        worker.heard_at = desk.now + 1.0
    desk.registry.get("d-2").draining = True
    assert {desk.submit(f"r{i}").prefill_worker for i in range(4)} == {"p-2"}
    desk.registry.get("d-1").draining = True
    assert desk.submit("more").prefill_worker == "p-1", "nobody to pull is no fault of the path"


def test_what_is_said_about_a_peer_that_is_gone_is_dropped() -> None:
    desk = Desk()
    desk.life.worker_lost("p-1")
    before = desk.life.stale_dropped
    desk.tested("p-1", "d-1")
    assert desk.life.stale_dropped == before + 1
    assert not desk.registry.pairs.usable("p-1", "d-1")


def test_the_stranded_are_refused_with_the_reason_and_do_not_come_back() -> None:
    registry = Registry()
    lifecycle = Lifecycle(
        registry, PlacementLimits(), lambda effect: None, lambda: 0.0, monotonic=lambda: 10.0
    )
    membership = Membership(
        registry, lifecycle.worker_lost, lifecycle.worker_returned, Mock(), HubSettings()
    )
    export = MemoryExport("shm", "h", 1, LAYOUT, PoolSize(8, 8))
    hellos = {
        name: Hello(name, role, "m", "cpu", 1, 128, 8, export)
        for name, role in (("p-1", "prefill"), ("d-1", "decode"), ("d-2", "decode"))
    }
    for hello in hellos.values():
        membership.admit(hello, Welcome("c", 1.0, 5.0, Targets(2.0, 0.05)))
    lifecycle.peer_tested("d-1", PeerTested("p-1", problem="wrong bytes"))
    lifecycle.peer_tested("d-2", PeerTested("p-1", 100, 0.1))
    registry.excuse(1e9)
    assert membership.refuse_stranded(reported_before=10.0) == []
    assert membership.refuse_stranded(reported_before=11.0) == [("d-1", Refused("wrong bytes"))]
    answer = membership.admit(hellos["d-1"], Welcome("c", 1.0, 5.0, Targets(2.0, 0.05)))
    assert answer == Refused("fenced: wrong bytes")
    assert {worker.instance for worker in registry.all()} == {"p-1", "d-2"}


def test_a_prompt_may_be_computed_before_its_pair_is_tested() -> None:
    desk = Desk()
    desk.registry.pairs.forget("p-1")
    desk.registry.pairs.forget("p-2")
    desk.submit()
    ((_, message),) = desk.sent()
    assert isinstance(message, Prefill)
