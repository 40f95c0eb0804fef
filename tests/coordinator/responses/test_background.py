"""Responses in the background: asked for by their id, cancelled, stored when they end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from coordinator.core.contract import GenerationFailed
from coordinator.http.http_settings import HttpSettings
from coordinator.record.stored_response import StoredResponse
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import NoStoredResponses, make_app
from tests.coordinator.fake_core import FakeCore, Says

PATH = "/v1/responses"
ASK = {"input": "Hi", "background": True}


class Stored(NoStoredResponses):
    """Stores responses in memory, while ``there``."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}
        self.there = True

    async def keep(self, owner: str, response: StoredResponse) -> bool:
        if self.there:
            self.kept[owner, response.response_id] = response.body
        return self.there

    async def bodies(self, owner: str, response_ids: Any) -> list[bytes | None]:
        return [self.kept.get((owner, each)) for each in response_ids]

    async def delete(self, owner: str, response_id: str) -> bool:
        return self.kept.pop((owner, response_id), None) is not None


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
async def client_of_core(tokenizer: Tokenizer, stored: Stored) -> AsyncIterator[Any]:
    clients: list[httpx.AsyncClient] = []

    def make(core: FakeCore) -> httpx.AsyncClient:
        app = make_app(core, tokenizer, HttpSettings("tiny"), stored=stored)
        clients.append(httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


async def ended(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(5.0):
        while True:
            found: dict[str, Any] = (await client.get(f"{PATH}/{response_id}")).json()
            if found["status"] != "in_progress":
                return found


async def test_it_is_answered_at_once_and_found_when_it_has_ended(
    says: Says, client_of_core: Any, stored: Stored
) -> None:
    gate = asyncio.Semaphore(0)
    client = client_of_core(says("Hello!", gate=gate))
    begun = (await client.post(PATH, json=ASK)).json()
    assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
    assert Response.model_validate(begun).background, "OpenAI's client reads it"
    assert (await client.get(f"{PATH}/{begun['id']}")).json() == begun
    assert stored.kept == {}
    for _ in range(100):
        gate.release()
    found = await ended(client, begun["id"])
    assert (found["status"], found["store"], found["background"]) == ("completed", True, True)
    assert found["output"][0]["content"][0]["text"] == "Hello!"
    assert found["usage"]["output_tokens"] > 0
    assert set(stored.kept) == {("", begun["id"])}
    again = await client.post(f"{PATH}/{begun['id']}/cancel")
    assert again.json() == found, "one that has ended stays as it is"


async def test_its_input_is_listed_while_it_runs(says: Says, client_of_core: Any) -> None:
    client = client_of_core(says("Never", gate=asyncio.Semaphore(2)))
    begun = (await client.post(PATH, json=ASK)).json()
    listed = (await client.get(f"{PATH}/{begun['id']}/input_items")).json()
    (item,) = listed["data"]
    assert item["content"] == [{"type": "input_text", "text": "Hi"}]
    assert (listed["first_id"], listed["has_more"]) == (item["id"], False)
    await client.post(f"{PATH}/{begun['id']}/cancel")


async def test_cancelling_ends_it(says: Says, client_of_core: Any, stored: Stored) -> None:
    core = says("Never", gate=asyncio.Semaphore(2))
    client = client_of_core(core)
    begun = (await client.post(PATH, json=ASK)).json()
    answers = await asyncio.gather(*(client.post(f"{PATH}/{begun['id']}/cancel") for _ in range(2)))
    assert [answer.json()["status"] for answer in answers] == ["cancelled"] * 2
    assert core.outcomes == ["cancelled"]
    found = await client.get(f"{PATH}/{begun['id']}")
    assert (found.json()["status"], found.json()["store"]) == ("cancelled", True)


async def test_deleting_one_that_runs_cancels_it(says: Says, client_of_core: Any) -> None:
    core = says("Never", gate=asyncio.Semaphore(0))
    client = client_of_core(core)
    begun = (await client.post(PATH, json=ASK)).json()
    assert (await client.delete(f"{PATH}/{begun['id']}")).json()["deleted"]
    assert core.outcomes == ["cancelled"]
    assert (await client.get(f"{PATH}/{begun['id']}")).status_code == 404


async def test_a_failure_is_told_by_its_body(says: Says, client_of_core: Any) -> None:
    core = FakeCore(lambda _: [], failure=GenerationFailed("worker_lost", "it is gone"))
    client = client_of_core(core)
    begun = (await client.post(PATH, json=ASK)).json()
    found = await ended(client, begun["id"])
    assert found["status"] == "failed"
    assert found["error"]["code"] == "server_error"
    assert "it is gone" in found["error"]["message"]


async def test_one_that_cannot_be_stored_is_found_all_the_same(
    says: Says, client_of_core: Any, stored: Stored
) -> None:
    stored.there = False
    client = client_of_core(says("Hello!"))
    begun = (await client.post(PATH, json=ASK)).json()
    found = await ended(client, begun["id"])
    assert (found["status"], found["store"]) == ("completed", False)
    assert (await client.delete(f"{PATH}/{begun['id']}")).json()["deleted"]
    assert (await client.get(f"{PATH}/{begun['id']}")).status_code == 404


async def test_only_background_responses_are_cancelled(says: Says, client_of_core: Any) -> None:
    client = client_of_core(says("Hello!"))
    made = (await client.post(PATH, json={"input": "Hi"})).json()
    answer = await client.post(f"{PATH}/{made['id']}/cancel")
    assert answer.status_code == 400
    assert "background" in answer.json()["error"]["message"]
    unknown = f"resp_{'0' * 32}"
    assert (await client.post(f"{PATH}/{unknown}/cancel")).status_code == 404
    assert (await client.post(f"{PATH}/nothing/cancel")).status_code == 404
