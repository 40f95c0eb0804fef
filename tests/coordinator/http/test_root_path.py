"""The API below a path of a proxy, which removes that path or leaves it."""

import httpx
import pytest

from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.http_settings import HttpSettings
from coordinator.http.root_path import checked_root_path
from tests.coordinator.answers import CHAT, USER
from tests.coordinator.fake_core import ClientOf, Says


async def test_paths_work_with_and_without_the_root_path(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(), root_path="/ai/baton")
    for root in ("", "/ai/baton"):
        models = await client.get(f"{root}/v1/models")
        assert models.json()["data"][0]["id"] == "tiny"
        one = await client.get(f"{root}/v1/models/tiny")
        assert one.status_code == 200
        answer = await client.post(f"{root}{CHAT}", json={"messages": USER})
        assert answer.status_code == 200
        page = await client.get(f"{root}/")
        assert 'src="page/baton.js"' in page.text, "what the page loads is relative to it"
        assert (await client.get(f"{root}/page/baton.js")).status_code == 200
    assert (await client.get("/ai/batonx/v1/models")).status_code == 404
    assert (await client.get("/openapi.json")).json()["servers"] == [{"url": "/ai/baton"}]


async def test_a_redirect_stays_below_it(says: Says, client_of: ClientOf) -> None:
    for settings, root in (({"root_path": "/baton"}, "/baton"), ({}, "")):
        client = client_of(says(), **settings)
        for path in (f"{root}/status/", "/status/"):
            answer = await client.get(path)
            assert answer.status_code == 307
            assert httpx.URL(answer.headers["location"]).path == f"{root}/status"


async def test_a_key_is_asked_for_below_it(says: Says, client_of: ClientOf) -> None:
    keys = parse_api_keys("a:a-secret-of-sixteen", "BATON_API_KEYS")
    client = client_of(says(), root_path="/baton", api_keys=keys)
    assert (await client.get("/baton/health")).status_code == 200
    assert (await client.get("/baton/v1/models")).status_code == 401
    headers = {"authorization": "Bearer a-secret-of-sixteen"}
    assert (await client.get("/baton/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["baton", "/a/../b", "/a b", "//a", "/a?b", "http://a/b", "/."])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="root_path: "):
        checked_root_path(path)


def test_a_slash_at_its_end_is_dropped() -> None:
    assert checked_root_path("/a/b/") == "/a/b"
    assert checked_root_path("/") == checked_root_path("") == ""
    with pytest.raises(ValueError, match="root_path: "):
        HttpSettings("tiny", root_path="/a/")
