"""Pools that follow the load: assigned by the policy, with its reason."""

from coordinator.core.pool_meter import PoolMeter
from coordinator.core.pool_policy import LOOK_S
from coordinator.core.pool_targets import PoolTargets
from coordinator.core.pools_follow import PoolsThatFollow
from tests.coordinator.core.test_pools import NAMES, Site

TARGETS = PoolTargets(ttft_s=0.5, tpot_s=0.05)


def follow(site: Site) -> PoolsThatFollow:
    return PoolsThatFollow(site.pools, TARGETS, PoolMeter())


def computed(site: Site, tok_s: int) -> None:
    worker = site.registry.require("p-1")
    worker.heard_at = 1.0
    worker.note_prompt(tok_s, tok_s, assigned_at=0.0)


def test_prompts_that_wait_get_another_worker() -> None:
    site = Site()
    pools = follow(site)
    computed(site, 100)
    pools.look(0, now=1.0)
    site.registry.require("p-1").load.tokens_ahead = 200
    pools.look(0, now=1.0 + LOOK_S)
    assert sorted(site.roles().values()) == ["decode", "prefill", "prefill", "prefill"]
    assert pools.why.startswith("2 → 3 prefill: 200 tokens wait, predicted TTFT ")


def test_the_pools_keep_the_times_of_the_strictest_open_request() -> None:
    site = Site()
    pools = follow(site)
    computed(site, 100)
    patient = 60.0, 0.0
    pools.look(0, 1.0)
    site.registry.require("p-1").load.tokens_ahead = 200
    pools.look(0, 1.0 + LOOK_S, [patient, patient])
    assert not site.changes
    pools.look(0, 1.0 + 2 * LOOK_S, [patient, (0.0, 0.0)])
    assert sorted(site.roles().values()) == ["decode", "prefill", "prefill", "prefill"]


def test_nothing_changes_before_a_prompt_was_computed() -> None:
    site = Site()
    pools = follow(site)
    site.registry.require("p-1").load.tokens_ahead = 10_000
    pools.look(0, now=1.0)
    assert not site.changes
    assert pools.why == ""


def test_workers_of_one_role_stay_what_they_are() -> None:
    site = Site(any_role=False)
    pools = follow(site)
    computed(site, 100)
    site.registry.require("p-1").load.tokens_ahead = 10_000
    for beat in range(4):
        pools.look(0, now=1.0 + beat)
    assert list(site.roles()) == list(NAMES)
    assert not site.changes
