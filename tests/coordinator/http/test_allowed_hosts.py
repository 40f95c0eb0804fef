"""A web page must not read answers of a local server through a name of its own."""

import pytest

from coordinator.http.allowed_hosts import ANY, served_hosts
from tests.coordinator.answers import CHAT, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says

LOCAL = [
    "localhost", "localhost:8000", "LOCALHOST:8000", "localhost.", "api.localhost:8000",
    "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]",
]  # fmt: skip
FOREIGN = [
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
    "evil.example#localhost", "0.0.0.0", "192.168.1.2:8000", "[::]", "", "localhost@evil.example",
]  # fmt: skip


async def status(client_of: ClientOf, says: Says, hosts: tuple[str, ...], host: str) -> int:
    client = client_of(says(), allowed_hosts=hosts)
    response = await client.post(CHAT, json={"messages": USER}, headers={"host": host})
    if response.status_code != 200:
        error = check_error(response, 421)
        assert error["code"] == "host_not_allowed"
        assert "BATON_ALLOWED_HOSTS" in error["message"]
    assert (await client.get("/health", headers={"host": host})).status_code == response.status_code
    return response.status_code


@pytest.mark.parametrize("host", LOCAL)
async def test_loopback_names_are_served(says: Says, client_of: ClientOf, host: str) -> None:
    hosts = served_hosts("127.0.0.1", (), has_keys=False)
    assert await status(client_of, says, hosts, host) == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_other_hosts_are_misdirected(says: Says, client_of: ClientOf, host: str) -> None:
    hosts = served_hosts("127.0.0.1", (), has_keys=False)
    assert await status(client_of, says, hosts, host) == 421


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        ("127.0.0.1", "API.example:8000", 200),
        ("127.0.0.1", "evil.example", 421),
        ("10.0.0.5", "10.0.0.5:8000", 200),
        ("10.0.0.5", "10.0.0.6", 421),
        ("0.0.0.0", "10.0.0.6:8000", 200),
        ("::", "[fe80::1]:8000", 200),
        ("0.0.0.0", "evil.example", 421),
        ("0.0.0.0", "localhost", 200),
    ],
)
async def test_a_list_is_served_beside_the_bound_address(
    says: Says, client_of: ClientOf, bound: str, host: str, expected: int
) -> None:
    hosts = served_hosts(bound, ("api.Example",), has_keys=True)
    assert await status(client_of, says, hosts, host) == expected


@pytest.mark.parametrize(
    ("bound", "listed", "has_keys"),
    [
        ("0.0.0.0", (), False),
        ("10.0.0.5", (), False),
        ("127.0.0.1", (), True),
        ("127.0.0.1", ("*",), False),
    ],
)
async def test_where_other_machines_or_keys_are_expected_any_host_is_served(
    says: Says, client_of: ClientOf, bound: str, listed: tuple[str, ...], has_keys: bool
) -> None:
    hosts = served_hosts(bound, listed, has_keys=has_keys)
    assert hosts == (ANY,)
    assert await status(client_of, says, hosts, "evil.example") == 200
