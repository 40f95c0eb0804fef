"""POST /v1/pools: what it answers, and who may ask."""

import pytest

from coordinator.core.contract import PoolChange, PoolsSuperseded, WorkerStatus
from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.http_settings import HttpSettings
from tests.coordinator.fake_core import ClientOf, FakeCore, Says

POOLS = "/v1/pools"
WORKERS = tuple(
    WorkerStatus(name, role, "cpu", 0, 0, 8, 8, 4, 4, "")
    for name, role in (("a", "prefill"), ("b", "decode"))
)
KEYS = {"boss": "key-of-the-operator", "guest": "key-of-somebody-else"}


def core_of(says: Says) -> FakeCore:
    core = says()
    core.workers = WORKERS
    return core


async def test_the_pools_are_answered_with_the_roles(says: Says, client_of: ClientOf) -> None:
    answer = await client_of(core_of(says)).post(POOLS, json={"prefill": 1, "decode": 1})
    assert answer.status_code == 200
    assert answer.json() == {
        "prefill": 1, "decode": 1, "workers": {"a": "prefill", "b": "decode"}, "changed": {},
        "num_moved": 0, "num_left": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prefill": 2, "decode": 1}, "3 workers are asked for"),
        ({"prefill": 2}, "decode"),
        ({"prefill": "two", "decode": 1}, "prefill"),
        ([], "object"),
    ],
)
async def test_a_bad_body_is_refused_by_its_field(
    body: object, named: str, says: Says, client_of: ClientOf
) -> None:
    answer = await client_of(core_of(says)).post(POOLS, json=body)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]


async def test_no_json_and_too_much_of_it_are_refused(says: Says, client_of: ClientOf) -> None:
    client = client_of(core_of(says))
    headers = {"content-type": "application/json"}
    for content in (b"", b"{", b'{"x":' + b"[" * 2_000, b" " * 5_000):
        assert (await client.post(POOLS, content=content, headers=headers)).status_code == 400


async def test_a_change_that_another_one_overtook_is_told(
    says: Says, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overtaken(prefill: int, decode: int) -> PoolChange:
        raise PoolsSuperseded("pools of 1 prefill and 1 decode were asked for since")

    core = core_of(says)
    monkeypatch.setattr(core, "set_pools", overtaken)
    answer = await client_of(core).post(POOLS, json={"prefill": 1, "decode": 1})
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "superseded"


async def test_with_keys_only_operators_may_ask(says: Says, client_of: ClientOf) -> None:
    keys = parse_api_keys("\n".join(f"{name}:{key}" for name, key in KEYS.items()), "keys")
    client = client_of(core_of(says), api_keys=keys, operator_keys=("boss",))
    for name, status in (("boss", 200), ("guest", 403)):
        headers = {"authorization": f"Bearer {KEYS[name]}"}
        answer = await client.post(POOLS, json={"prefill": 1, "decode": 1}, headers=headers)
        assert answer.status_code == status
    assert "BATON_OPERATOR_KEYS" in answer.json()["error"]["message"]
    assert (await client.post(POOLS, json={"prefill": 1, "decode": 1})).status_code == 401


def test_an_operator_without_a_key_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="operator_keys: 'nobody'"):
        HttpSettings("tiny", operator_keys=("nobody",))
