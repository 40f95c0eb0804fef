"""/v1/requests over a scripted history."""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import msgspec
import pytest
from msgspec import structs

from coordinator.http.http_settings import HttpSettings
from coordinator.http.response_schemas import ErrorBody
from coordinator.http.timeline import RequestList, RequestTimeline
from coordinator.record.record import RequestRecord
from coordinator.record.redis_link import RedisUnavailable
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore
from transport.wire.errors import MalformedMessage


class FakeHistory:
    """Knows ``records``, last one last; without Redis only what ``get`` finds in memory."""

    def __init__(self, *records: RequestRecord) -> None:
        self.records = {record.request_id: record for record in records}
        self.away = False

    async def get(self, request_id: str) -> RequestRecord | None:
        if request_id == "damaged":
            raise MalformedMessage("no hash")
        if self.away and request_id not in self.records:
            raise RedisUnavailable("redis://:secret@somewhere", "is away")
        return self.records.get(request_id)

    async def recent(self, most: int) -> list[RequestRecord]:
        if self.away:
            raise RedisUnavailable("redis://:secret@somewhere", "is away")
        return list(reversed(self.records.values()))[:most]


def record(number: int) -> RequestRecord:
    at = 100.0 + number
    return RequestRecord(request_id=f"r{number}", coordinator="c", received_at=at, queued_at=at)


@pytest.fixture
def history() -> FakeHistory:
    return FakeHistory(*(record(i) for i in range(30)))


@pytest.fixture
async def client(
    says: Callable[..., FakeCore], tokenizer: Tokenizer, history: FakeHistory
) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(says(), tokenizer, HttpSettings("tiny"), history=history)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        yield client


async def test_one_request_with_or_without_its_responses_prefix(client: httpx.AsyncClient) -> None:
    for name in ("r7", "chatcmpl-r7", "cmpl-r7"):
        answer = await client.get(f"/v1/requests/{name}")
        assert msgspec.json.decode(answer.content, type=RequestTimeline).id == "r7"


async def test_a_request_is_found_by_the_name_that_its_client_gave(
    client: httpx.AsyncClient, history: FakeHistory
) -> None:
    answer = await client.post(
        "/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "order-66"}
    )
    response_id = answer.json()["id"]
    assert response_id == "cmpl-order-66"
    history.records = {}
    asked: list[str] = []
    get = history.get

    async def noting(request_id: str) -> RequestRecord | None:
        asked.append(request_id)
        return await get(request_id)

    history.get = noting  # type: ignore[method-assign]
    for name in (response_id, "order-66", "order-66-1"):
        assert (await client.get(f"/v1/requests/{name}")).status_code == 404
    assert len(asked[0]) == 32, "the core's own id"
    assert asked == [asked[0], asked[0], f"{asked[0]}-1"]


@pytest.mark.parametrize("name", ["team/order-66", "chatcmpl-66", "cmpl-66"])
async def test_a_name_may_hold_slashes_and_begin_as_an_id_does(
    client: httpx.AsyncClient, history: FakeHistory, name: str
) -> None:
    named = {"x-request-id": name}
    answer = await client.post("/v1/responses", json={"input": "x"}, headers=named)
    request_id = answer.json()["id"].removeprefix("resp_")
    history.records = {request_id: structs.replace(record(1), request_id=request_id)}
    for path in (name, f"resp_{name}", f"{name}/"):
        found = await client.get(f"/v1/requests/{path}")
        assert msgspec.json.decode(found.content, type=RequestTimeline).id == request_id


async def test_all_are_listed_with_a_trailing_slash_too(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/requests/?limit=2")).json()["data"]
    assert [entry["id"] for entry in listed] == ["r29", "r28"]


async def test_a_response_is_found_by_that_name_too_and_keeps_its_own_id(
    client: httpx.AsyncClient, history: FakeHistory
) -> None:
    named = {"x-request-id": "order-66"}
    answer = await client.post("/v1/responses", json={"input": "x"}, headers=named)
    request_id = answer.json()["id"].removeprefix("resp_")
    assert len(request_id) == 32
    history.records = {request_id: structs.replace(record(1), request_id=request_id)}
    for name in ("order-66", "resp_order-66", request_id):
        found = await client.get(f"/v1/requests/{name}")
        assert msgspec.json.decode(found.content, type=RequestTimeline).id == request_id


async def test_an_unknown_request_is_a_404(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/requests/stranger")
    error = msgspec.json.decode(answer.content, type=ErrorBody).error
    assert (answer.status_code, error.type, error.code, error.param) == (
        404, "invalid_request_error", "request_not_found", "request_id",
    )  # fmt: skip


async def test_a_damaged_record_is_a_404_of_its_own(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/requests/damaged")
    error = msgspec.json.decode(answer.content, type=ErrorBody).error
    assert (answer.status_code, error.code) == (404, "record_unreadable")


async def test_the_last_requests(client: httpx.AsyncClient) -> None:
    async def listed(query: str) -> list[str]:
        answer = await client.get(f"/v1/requests{query}")
        return [found.id for found in msgspec.json.decode(answer.content, type=RequestList).data]

    assert await listed("") == [f"r{i}" for i in range(29, 9, -1)]
    assert await listed("?limit=2") == ["r29", "r28"]
    for wrong in ("0", "201", "many", "-1"):
        answer = await client.get(f"/v1/requests?limit={wrong}")
        assert msgspec.json.decode(answer.content, type=ErrorBody).error.param == "limit"
        assert answer.status_code == 400


async def test_without_redis_only_what_is_in_memory(
    client: httpx.AsyncClient, history: FakeHistory
) -> None:
    history.away = True
    assert (await client.get("/v1/requests/r1")).status_code == 200
    for path in ("/v1/requests/other", "/v1/requests"):
        answer = await client.get(path)
        error = msgspec.json.decode(answer.content, type=ErrorBody).error
        assert (answer.status_code, error.code) == (503, "record_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert "somewhere" not in error.message


async def test_openapi_tells_it(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert set(paths["/v1/requests"]["get"]["responses"]) == {"200", "400", "503"}
    assert set(paths["/v1/requests/{request_id}"]["get"]["responses"]) == {"200", "404", "503"}


async def test_all_requests_at_a_time_share_one_reading(
    client: httpx.AsyncClient, history: FakeHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    recent = history.recent

    async def counted(most: int) -> list[RequestRecord]:
        asked.append(most)
        return await recent(most)

    monkeypatch.setattr(history, "recent", counted)
    limits = [3, 25, 10] * 20
    answers = await asyncio.gather(
        *(client.get("/v1/requests", params={"limit": limit}) for limit in limits)
    )
    assert [len(answer.json()["data"]) for answer in answers] == limits
    assert max(asked) == 25
    assert len(asked) <= 4


async def test_a_page_that_asks_again_and_again_without_redis_fills_no_log(
    client: httpx.AsyncClient, history: FakeHistory, caplog: pytest.LogCaptureFixture
) -> None:
    history.away = True
    caplog.set_level("INFO", "coordinator")
    for _ in range(3):
        assert (await client.get("/v1/requests")).status_code == 503
    assert caplog.messages == []


async def test_an_open_request_tells_its_tokens_so_far(
    says: Callable[..., FakeCore], tokenizer: Tokenizer, history: FakeHistory
) -> None:
    app = make_app(says(outputs={"r29": 17}), tokenizer, HttpSettings("tiny"), history=history)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        one = (await client.get("/v1/requests/r29")).json()
        listed = (await client.get("/v1/requests?limit=2")).json()["data"]
    assert one["completion_tokens"] == 17
    assert [each["completion_tokens"] for each in listed] == [17, 0]
