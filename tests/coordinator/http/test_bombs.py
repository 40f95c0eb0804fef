"""Schemas, grammars and tools made to hurt: each is a 400 that names the field, and the work of
finding that is not the coordinator's."""

import asyncio

import httpx
import pytest

from tests.coordinator.answers import CHAT, USER, check_error
from tests.coordinator.bombs import BAD
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.little_work import little_work


@pytest.mark.parametrize("name", BAD)
async def test_a_bomb_is_a_quick_400(checked_client: httpx.AsyncClient, name: str) -> None:
    body = BAD[name].body()
    with little_work():
        response = await checked_client.post(CHAT, content=body)
    assert check_error(response, 400)["param"].startswith(BAD[name].param)


async def test_a_grammar_among_bombs_is_served(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())
    bombs = [client.post(CHAT, content=bad.body(1)) for bad in BAD.values()]
    good = {"messages": USER, "structured_outputs": {"regex": "[a-c]+"}}
    *refused, served = await asyncio.gather(*bombs, client.post(CHAT, json=good))
    assert served.status_code == 200
    assert {response.status_code for response in refused} <= {400, 503}
