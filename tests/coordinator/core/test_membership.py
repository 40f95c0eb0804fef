"""Hellos that repeat, and silence that is our own."""

from unittest.mock import Mock

from msgspec.structs import replace

from coordinator.core.contract import SequenceRequest
from coordinator.core.requests.lifecycle import Lifecycle
from coordinator.core.settings import HubSettings, PlacementLimits
from coordinator.core.workers.membership import ANSWERED_S, Membership
from coordinator.core.workers.registry import Registry
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Hello, Refused, Targets, Welcome
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

LAYOUT = CacheLayout("float32", 16, *[1] * 9)
MEMORY = MemoryExport("shm", "h", 1, LAYOUT, PoolSize(8, 8))
HELLO = Hello("p-1", "prefill", "m", "cpu", 1, 128, 8, MEMORY)
WELCOME = Welcome("c-1", 1.0, 5.0, Targets(2.0, 0.05))
GENERATION = SequenceRequest("r", packed((1, 2, 3)), SamplingParams(), StopRule(max_tokens=4))


def site() -> tuple[Registry, Lifecycle, Membership]:
    registry = Registry()
    lifecycle = Lifecycle(registry, PlacementLimits(), lambda effect: None, lambda: 0.0)
    return (
        registry,
        lifecycle,
        Membership(
            registry, lifecycle.worker_lost, lifecycle.worker_returned, Mock(), HubSettings()
        ),
    )


def test_hellos_that_queued_up_count_as_one() -> None:
    registry, lifecycle, membership = site()
    membership.admit(HELLO, WELCOME)
    lifecycle.submit(GENERATION, 0.0)
    for _ in range(10):
        assert membership.admit(HELLO, WELCOME) == WELCOME
    request = lifecycle.requests["r"]
    assert (request.attempt, request.faults, request.prefill_worker) == (1, 0, "p-1")
    assert len(registry.all()) == 1


def test_hello_of_a_worker_that_lost_us_starts_afresh() -> None:
    registry, lifecycle, membership = site()
    membership.admit(HELLO, WELCOME)
    registry.all()[0].settled = True
    lifecycle.submit(GENERATION, 0.0)
    assert membership.admit(HELLO, WELCOME) == WELCOME
    lifecycle.worker_joined("p-1")
    assert lifecycle.requests["r"].attempt == 2


def test_a_hello_long_after_the_welcome_says_that_it_was_lost() -> None:
    registry, lifecycle, membership = site()
    membership.admit(HELLO, WELCOME)
    lifecycle.submit(GENERATION, 0.0)
    first = registry.get("p-1")
    first.heard_at -= ANSWERED_S
    assert membership.admit(HELLO, WELCOME) == WELCOME
    assert registry.get("p-1") is not first, "as one that is new, with nothing placed there"
    assert lifecycle.requests["r"].prefill_worker == ""


def test_silence_is_not_held_against_a_worker_while_we_were_absent() -> None:
    registry, _, _ = site()
    registry.add(HELLO, now=100.0)
    assert registry.silent(112.0, dead_after_s=10.0)
    registry.excuse(11.0)
    assert not registry.silent(112.0, dead_after_s=10.0)


def test_split_pools_and_colocated_workers_do_not_mix() -> None:
    registry, _, membership = site()
    membership.admit(HELLO, WELCOME)
    refused = membership.admit(replace(HELLO, instance="b-1", role="colocated"), WELCOME)
    assert isinstance(refused, Refused)
    assert "colocated at b-1, prefill at p-1" in refused.reason
    assert registry.missing_roles() == ("decode",)
    registry.remove("p-1")
    assert registry.missing_roles() == ("prefill", "decode")
    assert membership.admit(replace(HELLO, instance="b-2", role="colocated"), WELCOME) == WELCOME
    assert registry.missing_roles() == ()
    registry.all()[0].draining = True
    assert registry.missing_roles() == ("colocated",)
    assert isinstance(membership.admit(HELLO, WELCOME), Refused)


def test_a_refusal_of_another_model_says_which_setting_differs() -> None:
    _, _, membership = site()
    membership.admit(HELLO, WELCOME)
    drafting = replace(MEMORY, layout=replace(LAYOUT, num_attention_layers=2))
    for changes, setting in (
        ({"memory": drafting}, "BATON_SPECULATE"),
        ({"draft_acceptance": 0.8}, "BATON_DRAFT_ACCEPTANCE"),
        ({}, "BATON_QUANTIZE"),
    ):
        other = replace(HELLO, instance="d-1", role="decode", model="n", **changes)
        refused = membership.admit(other, WELCOME)
        assert isinstance(refused, Refused)
        assert "model mismatch: n at d-1, m at p-1; " in refused.reason
        assert refused.reason.endswith(f"the same {setting}")


def test_a_decode_worker_is_not_refused_for_the_memory_of_one_that_leaves() -> None:
    registry, _, membership = site()
    membership.admit(HELLO, WELCOME)
    membership.admit(replace(HELLO, instance="d-1", role="decode"), WELCOME)
    registry.pairs.report("p-1", "d-1", "no longer exists", now=registry.get("p-1").heard_at - 1)
    registry.get("p-1").draining = True
    assert membership.refuse_stranded(float("inf")) == []
    registry.get("p-1").draining = False
    ((refused, _),) = membership.refuse_stranded(float("inf"))
    assert refused == "d-1"


def test_a_fenced_worker_that_is_heard_again_is_refused_and_was_not_dead() -> None:
    registry, lifecycle, membership = site()
    membership.admit(HELLO, WELCOME)
    request = lifecycle.submit(GENERATION, 0.0)
    membership.fence_gone({"p-1"})
    assert (request.deaths, registry.all()) == (1, [])
    assert isinstance(membership.admit(HELLO, WELCOME), Refused)
    assert request.deaths == 0
    assert isinstance(membership.answer_unknown("p-1"), Refused)
