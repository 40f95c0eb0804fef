"""What clients of other servers take for granted."""

import gzip
import json

import httpx
import pytest

from coordinator.http.prompts import with_one_system_message
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, post
from tests.coordinator.fake_core import ClientOf, Says

ORIGIN = "https://app.example"


async def test_a_completion_has_sixteen_tokens_unless_it_says_otherwise(
    says: Says, client_of: ClientOf
) -> None:
    core = says()
    client = client_of(core)
    await post(client, COMPLETIONS, prompt="Hi")
    await post(client, COMPLETIONS, prompt="Hi", max_tokens=40)
    await post(client, CHAT, messages=USER)
    limits = [stream.spec.stop.max_tokens for stream in core.streams]
    assert limits[:2] == [16, 40]
    assert limits[2] > 40


async def test_a_path_that_does_not_exist_is_named(checked_client: httpx.AsyncClient) -> None:
    for path in ("/chat/completions", "/responses", "/messages"):
        error = check_error(await checked_client.post(path, json={}), 404)
        assert f"POST '{path}'" in error["message"]
        assert f"/v1{path} meant" in error["message"]
    assert "meant" not in check_error(await checked_client.get("/nothing"), 404)["message"]


async def test_a_trailing_slash_is_redirected(says: Says, client_of: ClientOf) -> None:
    response = await client_of(says()).post(f"{CHAT}/", json={"messages": USER})
    assert response.status_code == 307
    assert response.headers["location"].endswith(CHAT)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny"])
async def test_a_trailing_slash_makes_no_other_model(
    checked_client: httpx.AsyncClient, path: str
) -> None:
    found = [(await checked_client.get(asked)).json() for asked in (path, f"{path}/")]
    assert found[0]["object"] in ("list", "model")
    assert found[0] == found[1]


async def test_a_compressed_body_is_refused_as_such(checked_client: httpx.AsyncClient) -> None:
    response = await checked_client.post(
        CHAT, content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}
    )
    assert check_error(response, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "declared",
    ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data", "json"],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/tokenize"])
async def test_a_body_that_is_not_declared_as_json_is_a_415(
    says: Says, client_of: ClientOf, path: str, declared: str
) -> None:
    client = client_of(says())
    del client.headers["content-type"]
    headers = {"content-type": declared} if declared else {}
    answer = await client.post(path, content=b'{"messages": [], "prompt": "x"}', headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "declared", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"]
)
async def test_json_by_its_other_names_is_taken(
    says: Says, client_of: ClientOf, declared: str
) -> None:
    body = json.dumps({"messages": USER})
    answer = await client_of(says()).post(CHAT, content=body, headers={"content-type": declared})
    assert answer.status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping(says: Says, client_of: ClientOf, method: str) -> None:
    assert (await client_of(says()).request(method, "/ping")).status_code == 200


async def test_a_page_of_an_allowed_origin_may_call(says: Says, client_of: ClientOf) -> None:
    asks = {"origin": ORIGIN, "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type"}  # fmt: skip
    client = client_of(says(), allowed_origins=(ORIGIN,))
    preflight = await client.options(CHAT, headers=asks)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    answer = await client.post(CHAT, json={"messages": USER}, headers={"origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    other = await client.options(CHAT, headers=asks | {"origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers
    closed = await client_of(says()).post(CHAT, json={"messages": USER}, headers={"origin": ORIGIN})
    assert "access-control-allow-origin" not in closed.headers


async def test_a_late_system_message_is_moved_where_the_template_refuses_it(
    says: Says, client_of: ClientOf
) -> None:
    core = says()
    late = [*USER, {"role": "system", "content": "Be brief."}]
    await post(client_of(core), CHAT, messages=late)
    first = [late[1], late[0]]
    await post(client_of(core), CHAT, messages=first)
    prompts = [list(stream.spec.prompt_ids) for stream in core.streams]
    assert prompts[0] == prompts[1]


def test_system_messages_are_merged_for_templates_that_allow_one() -> None:
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Be brief."},
    ]
    assert with_one_system_message(turns) == [
        {"role": "system", "content": "Be kind.\n\nBe brief."},
        {"role": "user", "content": "Hi"},
    ]
