"""Responses that are kept in Redis: named by the next turn, read, deleted, forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseItemList
from redis import Redis

from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.http_settings import HttpSettings
from coordinator.http.responses import earlier
from coordinator.record import keys
from coordinator.record.redis_link import Damage, RedisLink
from coordinator.record.response_store import ResponseStore
from coordinator.record.settings import ResponseLimits
from coordinator.record.store import Store
from coordinator.record.stored_response import ConversationUnavailable, StoredResponse
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import check_error
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore, Says
from tests.coordinator.responses.sdk import create, parsed, stream
from tests.coordinator.stores import MakeStore, eventually, slow_way
from tests.local_redis import LocalRedis

ALICE = {"authorization": "Bearer sk-alice-0123456789abcdef"}
BOB = {"authorization": "Bearer sk-bob-0123456789abcdefgh"}
KEYS = parse_api_keys("alice:sk-alice-0123456789abcdef,bob:sk-bob-0123456789abcdefgh", "KEYS")

Site = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def site(tokenizer: Tokenizer, parsers: BodyParsers) -> AsyncIterator[Site]:
    """A client of an app that keeps responses in a store."""
    async with AsyncExitStack() as stack:

        def make(core: FakeCore, store: Store, **settings: Any) -> httpx.AsyncClient:
            app = make_app(
                core, tokenizer, HttpSettings("tiny", **settings), parsers=parsers,
                stored=store.responses,
            )  # fmt: skip
            client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t")
            stack.push_async_callback(client.aclose)
            return client

        yield make


def prompt(core: FakeCore, tokenizer: Tokenizer) -> str:
    """The text that the core was asked to continue last."""
    return tokenizer.decode(core.streams[-1].spec.prompt_ids)


async def test_a_conversation_goes_on(
    says: Says, site: Site, make_store: MakeStore, tokenizer: Tokenizer
) -> None:
    core = says("Nice!")
    client = site(core, await make_store())
    first = await create(client, input="I am Nina.", instructions="Be kind.")
    second = (await stream(client, input="And?", previous_response_id=first.id))[-1].response
    third = await create(client, input="Who am I?", previous_response_id=second.id)
    assert (third.previous_response_id, second.previous_response_id) == (second.id, first.id)
    text = prompt(core, tokenizer)
    places = [text.index(turn) for turn in ("I am Nina.", "Nice!", "And?", "Who am I?")]
    assert places == sorted(places)
    assert text.count("Nice!") == 2
    assert "Be kind." not in text, "instructions are of one turn"


async def test_it_can_be_read_and_deleted(says: Says, site: Site, make_store: MakeStore) -> None:
    client = site(says("Nice!"), await make_store())
    made = await create(client, metadata={"a": "b"})
    path = f"/v1/responses/{made.id}"
    read = parsed((await client.get(path)).content)
    assert read == made
    assert (await client.get(path, params={"stream": "true"})).status_code == 400
    answer = await client.delete(path)
    assert answer.json() == {"id": made.id, "object": "response.deleted", "deleted": True}
    for again in (await client.get(path), await client.delete(path)):
        assert check_error(again, 404, "response_id")["code"] == "response_not_found"
    body = {"input": "Hi", "previous_response_id": made.id}
    error = check_error(await client.post("/v1/responses", json=body), 400, "previous_response_id")
    assert error["code"] == "previous_response_not_found"
    check_error(await client.get("/v1/responses/nonsense"), 404, "response_id")


async def test_items_may_be_named(
    says: Says, site: Site, make_store: MakeStore, tokenizer: Tokenizer
) -> None:
    core = says("Nice!")
    client = site(core, await make_store())
    made = await create(client, input="I am Nina.")
    item = {"type": "item_reference", "id": made.output[0].id}
    await create(client, input=[{"role": "user", "content": "I am Nina."}, item,
                                {"role": "user", "content": "And?"}])  # fmt: skip
    text = prompt(core, tokenizer)
    assert text.index("I am Nina.") < text.index("Nice!") < text.index("And?")


async def test_a_heavy_body_may_name_items_too(
    says: Says, site: Site, make_store: MakeStore, tokenizer: Tokenizer
) -> None:
    """Another process finds what it names."""
    core = says("Nice!")
    client = site(core, await make_store())
    made = await create(client, input="I am Nina.")
    item = {"type": "item_reference", "id": made.output[0].id}
    await create(client, input=[{"role": "user", "content": "And?"}, item], unknown="x" * 70_000)
    text = prompt(core, tokenizer)
    assert text.index("And?") < text.index("Nice!")


async def test_the_bytes_of_named_items_are_bounded(
    says: Says, site: Site, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = site(says("Nice!"), await make_store())
    made = [await create(client) for _ in range(3)]
    references = [{"type": "item_reference", "id": each.output[0].id} for each in made]
    size = len((await client.get(f"/v1/responses/{made[0].id}")).content)
    monkeypatch.setattr(earlier, "MAX_REFERENCED_BYTES", 2 * size + size // 2)
    await create(client, input=references[:2])
    answer = await client.post("/v1/responses", json={"input": references})
    assert check_error(answer, 400, "input")["code"] == "context_length_exceeded"


async def test_a_conversation_counts_with_the_bodies_that_wait(
    says: Says, site: Site, make_store: MakeStore
) -> None:
    store = await make_store()
    made = await create(site(says("Nice!"), store), input="I am Nina. " * 40)
    client = site(says("Nice!"), store, max_held_body_bytes=600)
    answer = await client.post("/v1/responses", json={"input": "Hi"})
    assert answer.status_code == 200
    body = {"input": "Hi", "previous_response_id": made.id}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 429, answer.text


async def test_store_false_keeps_nothing(
    says: Says, site: Site, make_store: MakeStore, redis: Redis
) -> None:
    client = site(says("Nice!"), await make_store())
    made = await create(client, store=False)
    assert made.model_extra == {"store": False}
    assert (await client.get(f"/v1/responses/{made.id}")).status_code == 404
    assert redis.keys(f"{keys.RESPONSE_PREFIX}*") == []


async def test_only_the_key_that_made_it_finds_it(
    says: Says, site: Site, make_store: MakeStore
) -> None:
    client = site(says("Nice!"), await make_store(), api_keys=KEYS)
    answer = await client.post("/v1/responses", json={"input": "Hi"}, headers=ALICE)
    made = parsed(answer.content)
    path = f"/v1/responses/{made.id}"
    assert (await client.get(path, headers=BOB)).status_code == 404
    assert (await client.delete(path, headers=BOB)).status_code == 404
    reference = [{"type": "item_reference", "id": made.output[0].id}]
    for body in ({"input": "?", "previous_response_id": made.id}, {"input": reference}):
        answer = await client.post("/v1/responses", json=body, headers=BOB)
        assert answer.status_code in (400, 404), answer.text
    assert (await client.get(path, headers=ALICE)).status_code == 200


async def test_without_redis_stateless_requests_go_on(
    says: Says, site: Site, make_store: MakeStore, server: LocalRedis
) -> None:
    store = await make_store()
    client = site(says("Nice!"), store)
    made = await create(client)
    server.stop()
    await eventually(lambda: not store.connected)
    later = await create(client)
    assert later.output_text == "Nice!"
    assert later.model_extra == {"store": False}, "it says that it could not be kept"
    assert (await stream(client))[-1].type == "response.completed"
    body = {"input": "Hi", "previous_response_id": made.id}
    answer = await client.post("/v1/responses", json=body)
    error = check_error(answer, 503, "previous_response_id")
    assert error["code"] == "record_unavailable"
    assert int(answer.headers["retry-after"]) > 0
    for answer in (
        await client.get(f"/v1/responses/{made.id}"),
        await client.delete(f"/v1/responses/{made.id}"),
    ):
        check_error(answer, 503)


async def test_a_late_redis_holds_up_an_end_for_a_moment(
    server: LocalRedis, tmp_path: Path
) -> None:
    limits = ResponseLimits(keep_wait_s=0.05)
    async with slow_way(server, tmp_path / "slow", 20.0) as url:
        link = RedisLink(url, call_timeout_s=30.0, damage=Damage())
        responses = ResponseStore(link, lambda: True, limits)
        async with asyncio.timeout(10.0):
            assert not await responses.keep("a", kept(1))
        await responses.close()


def kept(number: int, previous: int | None = None, size: int = 10) -> StoredResponse:
    before = "" if previous is None else f"resp_{previous}"
    return StoredResponse(f"resp_{number}", before, b'["%d"]' % number, b"b" * size)


async def test_responses_expire_after_their_last_use(make_store: MakeStore, redis: Redis) -> None:
    responses = (await make_store(response_limits=ResponseLimits(response_ttl_s=100))).responses
    for number in range(3):
        assert await responses.keep("a", kept(number, number - 1 if number else None))
    names = [keys.response("a", f"resp_{number}") for number in range(3)]
    for name in names:
        redis.expire(name, 10)
    assert await responses.conversation("a", "resp_1") == [b'["0"]', b'["1"]']
    times: list[Any] = [redis.ttl(name) for name in names]
    assert times[0] > 90
    assert times[1] > 90
    assert times[2] <= 10
    with pytest.raises(ConversationUnavailable):
        await responses.conversation("b", "resp_1")
    redis.delete(names[0])
    with pytest.raises(ConversationUnavailable, match="resp_0"):
        await responses.conversation("a", "resp_2")


async def test_the_bytes_of_all_are_bounded(make_store: MakeStore, redis: Redis) -> None:
    limits = ResponseLimits(response_bytes=500, max_response_bytes=200, max_conversation_bytes=20)
    responses = (await make_store(response_limits=limits)).responses
    assert not await responses.keep("a", kept(99, size=201))
    for number in range(10):
        assert await responses.keep("a", kept(number, number - 1 if number else None, size=95))
    left = [
        body is not None for body in await responses.bodies("a", [f"resp_{i}" for i in range(10)])
    ]
    assert left == [False] * 5 + [True] * 5, "the first ones had to go"
    assert redis.get(keys.RESPONSE_BYTES) == "500"
    assert redis.zcard(keys.RESPONSES) == 5
    with pytest.raises(ConversationUnavailable) as missing:
        await responses.conversation("a", "resp_7")
    assert not missing.value.too_long
    for number in range(5, 10):
        assert await responses.delete("a", f"resp_{number}")
    assert not await responses.delete("a", "resp_9")
    assert redis.get(keys.RESPONSE_BYTES) == "0"
    for number in range(5):
        assert await responses.keep("a", kept(number, number - 1 if number else None))
    with pytest.raises(ConversationUnavailable) as long:
        await responses.conversation("a", "resp_4")
    assert long.value.too_long


async def test_what_another_program_wrote_is_replaced(make_store: MakeStore, redis: Redis) -> None:
    store = await make_store()
    redis.set(keys.RESPONSES, "x")
    redis.hset(keys.RESPONSE_BYTES, "a", "b")
    redis.set(keys.response("a", "resp_1"), "x")
    assert await store.responses.bodies("a", ["resp_1"]) == [None]
    assert await store.responses.keep("a", kept(1))
    assert await store.responses.conversation("a", "resp_1") == [b'["1"]']
    assert store.damage.num_replaced == 3


async def test_a_lifetime_of_0_keeps_nothing(make_store: MakeStore) -> None:
    responses = (await make_store(response_limits=ResponseLimits(response_ttl_s=0))).responses
    assert not await responses.keep("a", kept(1))
    with pytest.raises(ValueError, match="response_ttl_s"):
        ResponseLimits(response_ttl_s=-1)


async def test_its_input_can_be_listed(says: Says, site: Site, make_store: MakeStore) -> None:
    client = site(says("Nice!"), await make_store())
    first = await create(client, input="I am Nina.")
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "And?"}]}]
    second = await create(client, input=parts, previous_response_id=first.id)
    path = f"/v1/responses/{second.id}/input_items"

    async def listed(**query: Any) -> ResponseItemList:
        answer = await client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return ResponseItemList.model_validate_json(answer.content)

    page = await listed(order="asc")
    texts = [item.content[0].text for item in page.data]  # type: ignore[union-attr]
    assert texts == ["I am Nina.", "Nice!", "And?"]
    ids = [item.id for item in page.data]
    assert ids[1] == first.output[0].id
    assert (page.first_id, page.last_id, page.has_more) == (ids[0], ids[-1], False)
    assert [item.id for item in (await listed()).data] == ids[::-1]
    some = await listed(order="asc", limit=1, after=ids[0])
    assert ([item.id for item in some.data], some.has_more) == ([ids[1]], True)
    check_error(await client.get(path, params={"after": "nonsense"}), 400, "after")
    check_error(await client.get(path, params={"limit": 0}), 400, "limit")
    other = f"/v1/responses/{first.id[:-4]}0000/input_items"
    check_error(await client.get(other), 404, "response_id")


async def test_the_tokens_of_an_input_are_counted(
    says: Says, site: Site, make_store: MakeStore
) -> None:
    client = site(says("Nice!"), await make_store())
    first = await create(client, input="I am Nina.", instructions="Be kind.")
    for fields in (
        {"input": "I am Nina.", "instructions": "Be kind."},
        {"input": "And?", "previous_response_id": first.id},
        {"input": "a b " * 20_000, "truncation": "auto"},
    ):
        answer = await client.post("/v1/responses/input_tokens", json=fields)
        if len(str(fields)) > 1_000:
            check_error(answer, 400, "input")
            continue
        made = await create(client, **fields)
        assert made.usage is not None
        assert answer.json() == {
            "object": "response.input_tokens", "input_tokens": made.usage.input_tokens,
        }  # fmt: skip
