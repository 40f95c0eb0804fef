"""Requests that ask for longer times than the pools keep for all others."""

import pytest

from coordinator.core.pool_targets import PoolTargets
from coordinator.http.target_headers import TPOT_HEADER, TTFT_HEADER
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ({}, (0.0, 0.0)),
        ({TTFT_HEADER: "60000"}, (60.0, 0.0)),
        ({TTFT_HEADER: "6e4", TPOT_HEADER: "250"}, (60.0, 0.25)),
    ],
)
async def test_a_request_asks_for_one_time_or_both(
    says: Says, client_of: ClientOf, headers: dict[str, str], asked: tuple[float, float]
) -> None:
    core = says("four", pools_follow=True)
    response = await client_of(core).post(CHAT, json={"messages": USER}, headers=headers)
    assert response.status_code == 200
    spec = core.streams[-1].spec
    assert (spec.ttft_s, spec.tpot_s) == asked
    assert "x-baton-warning" not in response.headers


@pytest.mark.parametrize("value", ["soon", "", "0", "-1", "nan", "inf"])
async def test_what_is_no_time_is_refused(says: Says, client_of: ClientOf, value: str) -> None:
    client = client_of(says("four", pools_follow=True))
    response = await client.post(COMPLETIONS, json={"prompt": "Hi"}, headers={TPOT_HEADER: value})
    error = check_error(response, 400, TPOT_HEADER)
    assert f"{value!r} is not a time above 0, in milliseconds" in error["message"]


async def test_pools_that_do_not_follow_the_load_ignore_it(says: Says, client_of: ClientOf) -> None:
    core = says("four")
    headers = {TTFT_HEADER: "60000"}
    response = await client_of(core).post(CHAT, json={"messages": USER}, headers=headers)
    warning = f"{TTFT_HEADER} is ignored: the pools do not follow the load"
    assert response.headers["x-baton-warning"] == warning
    assert core.streams[-1].spec.ttft_s == 0.0


def test_a_shorter_time_counts_as_the_services() -> None:
    kept = PoolTargets(ttft_s=2.0, tpot_s=0.05)
    assert kept.strictest([]) == kept
    assert kept.strictest([(0.1, 0.2)]) == PoolTargets(2.0, 0.2)
    assert kept.strictest([(60.0, 0.5), (5.0, 0.0)]) == PoolTargets(5.0, 0.05)
