"""A web page must not have a server without keys compute for it."""

import pytest

from coordinator.http.auth.api_keys import parse_api_keys
from tests.coordinator.answers import CHAT, USER, check_error
from tests.coordinator.fake_core import ClientOf, Says

HOST = {"host": "127.0.0.1:8000"}


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example", "http://127.0.0.1:3000", "http://localhost:8000", "null",
        "https://127.0.0.1:8000.evil.example", "HTTP://evil.example", "http://", "http://[",
    ],
)  # fmt: skip
async def test_a_post_of_a_foreign_page_is_refused(
    says: Says, client_of: ClientOf, origin: str
) -> None:
    core = says()
    headers = HOST | {"origin": origin, "content-type": "application/json"}
    client = client_of(core)
    answer = await client.post(CHAT, json={"messages": USER}, headers=headers)
    assert check_error(answer, 403)["code"] == "origin_not_allowed"
    assert core.streams == []
    deleted = await client.delete("/v1/responses/resp_1", headers=headers)
    assert deleted.status_code == 403
    assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:8000", "chrome-extension://abcdef", "vscode-webview://1", "app://obsidian"],
)
async def test_its_own_page_and_programs_are_served(
    says: Says, client_of: ClientOf, origin: str
) -> None:
    client = client_of(says())
    for headers in (HOST, HOST | {"origin": origin}):
        answer = await client.post(CHAT, json={"messages": USER}, headers=headers)
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("allowed", "status"), [(("https://app.example",), 200), (("*",), 200), (("https://b",), 403)]
)
async def test_a_list_of_origins_decides(
    says: Says, client_of: ClientOf, allowed: tuple[str, ...], status: int
) -> None:
    client = client_of(says(), allowed_origins=allowed)
    headers = HOST | {"origin": "https://app.example"}
    answer = await client.post(CHAT, json={"messages": USER}, headers=headers)
    assert answer.status_code == status


async def test_with_keys_the_key_decides(says: Says, client_of: ClientOf) -> None:
    key = "sk-0123456789abcdef"
    client = client_of(says(), api_keys=parse_api_keys(f"a:{key}", "keys"))
    headers = HOST | {"origin": "https://app.example", "authorization": f"Bearer {key}"}
    answer = await client.post(CHAT, json={"messages": USER}, headers=headers)
    assert answer.status_code == 200
