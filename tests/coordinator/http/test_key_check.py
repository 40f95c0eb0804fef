"""Keys and quotas, as a client meets them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import msgspec
import pytest

from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.auth.rate_limit_headers import duration
from coordinator.http.http_settings import HttpSettings
from coordinator.http.response_schemas import ErrorBody
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.anthropic_sdk import MESSAGES, asked, check_error
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore, Says
from tests.coordinator.http.test_middleware import post_scope

ALICE, SLOW, SMALL = (f"sk-{name}-0123456789abcdef" for name in ("alice", "slow", "small"))
KEYS = parse_api_keys(f"alice:{ALICE}\nslow:{SLOW}:2\nsmall:{SMALL}::30", "KEYS")
BODY = {"prompt": "x", "max_tokens": 50}


class Locked:
    """An app with keys, its core and its clock."""

    def __init__(self, core: FakeCore, tokenizer: Tokenizer) -> None:
        self.core = core
        self.now = 0.0
        settings = HttpSettings("tiny", api_keys=KEYS)
        self.app = make_app(core, tokenizer, settings, clock=lambda: self.now)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://t")

    async def ask(self, key: str, **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.http.post("/v1/completions", json=BODY | fields, headers=headers)

    async def metric(self, name: str, **labels: str) -> float:
        wanted = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        for line in (await self.http.get("/metrics")).text.splitlines():
            if line.startswith(f"{name}{{{wanted}}} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no {name} of {wanted}")


@pytest.fixture
async def locked(says: Says, tokenizer: Tokenizer) -> AsyncIterator[Locked]:
    app = Locked(says("one two three"), tokenizer)
    yield app
    await app.http.aclose()


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Bearer " + ALICE[:-1].encode())],
        [(b"authorization", b"Bearer " + ALICE.encode() + b"x")],
        [(b"authorization", b"Bearer \xff\xfe\x00")],
        [(b"authorization", b"Basic " + ALICE.encode())],
        [(b"authorization", ALICE.encode())],
        [(b"authorization", b"Bearer " + ALICE.encode())] * 2,
    ],
)
async def test_without_a_right_key_nothing_is_served(
    locked: Locked, headers: list[tuple[bytes, bytes]]
) -> None:
    for method, path in (
        ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
        ("POST", "/tokenize"), ("GET", "/status"), ("GET", "/openapi.json"), ("GET", "/nothing"),
    ):  # fmt: skip
        response = await locked.http.request(method, path, headers=headers)
        assert response.status_code == 401, (method, path)
        error = msgspec.json.decode(response.content, type=ErrorBody).error
        assert error.code == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]
        assert ALICE[3:-2] not in response.text
    assert locked.core.streams == []


async def test_probes_and_scrapers_need_no_key(locked: Locked) -> None:
    for path in ("/health", "/ready", "/metrics"):
        for headers in ({}, {"authorization": "Bearer"}):
            assert (await locked.http.get(path, headers=headers)).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER   "])
async def test_with_a_right_key_all_is_served(locked: Locked, scheme: str) -> None:
    headers = {"authorization": scheme + ALICE}
    assert (await locked.http.get("/v1/models", headers=headers)).status_code == 200
    assert (await locked.http.get("/nothing", headers=headers)).status_code == 404
    assert (await locked.ask(ALICE)).json()["choices"][0]["text"] == "one two three"


async def test_without_keys_any_header_will_do(says: Says, client_of: Callable[..., Any]) -> None:
    client = client_of(says())
    for value in ("Bearer", "Bearer anything", ""):
        response = await client.get("/v1/models", headers={"authorization": value})
        assert response.status_code == 200


async def test_answers_tell_what_the_quotas_still_allow(locked: Locked) -> None:
    limits = (await locked.ask(SLOW)).headers
    assert limits["x-ratelimit-limit-requests"] == "2"
    assert limits["x-ratelimit-remaining-requests"] == "1"
    assert limits["x-ratelimit-reset-requests"] == "30s"
    assert "x-ratelimit-limit-tokens" not in limits
    locked.now += 15.0
    headers = {"authorization": f"Bearer {SLOW}"}
    looked = (await locked.http.get("/v1/models", headers=headers)).headers
    assert looked["x-ratelimit-reset-requests"] == "15s"
    await locked.ask(SLOW)
    refused = await locked.ask(SLOW)
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["retry-after"] == "15"
    small = (await locked.ask(SMALL, stream=True)).headers
    assert small["x-ratelimit-limit-tokens"] == "30"
    assert 0 < int(small["x-ratelimit-remaining-tokens"]) < 30  # its prompt is charged already
    unlimited = (await locked.ask(ALICE)).headers
    assert not any(name.startswith("x-ratelimit") for name in unlimited)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0s"), (0.2, "1s"), (59.5, "1m0s"), (90.0, "1m30s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_requests_a_minute(locked: Locked) -> None:
    assert [(await locked.ask(SLOW)).status_code for _ in range(4)] == [200, 200, 429, 429]
    refused = await locked.ask(SLOW)
    error = msgspec.json.decode(refused.content, type=ErrorBody).error
    assert error.code == "rate_limit_exceeded"
    assert "'slow'" in error.message
    assert "2 requests a minute" in error.message
    assert refused.headers["retry-after"] == "30"
    assert (await locked.ask(ALICE)).status_code == 200  # another key's quota is its own
    locked.now += 29.0
    assert (await locked.ask(SLOW)).headers["retry-after"] == "1"
    locked.now += 1.0
    assert [(await locked.ask(SLOW)).status_code for _ in range(2)] == [200, 429]
    assert await locked.metric("baton_key_requests_total", key="slow", outcome="admitted") == 3
    assert await locked.metric("baton_key_requests_total", key="slow", outcome="refused") == 5


async def test_looking_costs_no_request(locked: Locked) -> None:
    """The page looks at two paths every two seconds, with its reader's key."""
    headers = {"authorization": f"Bearer {SLOW}"}
    for path in ("/status", "/v1/requests", "/v1/models") * 3:
        assert (await locked.http.get(path, headers=headers)).status_code == 200
    assert [(await locked.ask(SLOW)).status_code for _ in range(3)] == [200, 200, 429]
    assert (await locked.http.get("/status", headers=headers)).status_code == 200
    assert await locked.metric("baton_key_requests_total", key="slow", outcome="admitted") == 2


async def test_a_request_refused_after_its_admission_is_counted_once(
    tokenizer: Tokenizer, says: Says
) -> None:
    """Both are admitted with a token left; the first one's prompt takes it."""
    locked = Locked(says("one"), tokenizer)
    async with locked.http:
        long = {"prompt": "fox " * 40}
        answers = await asyncio.gather(*(locked.ask(SMALL, **long) for _ in range(2)))
        assert sorted(answer.status_code for answer in answers) == [200, 429]
        for outcome in ("admitted", "refused"):
            name = "baton_key_requests_total"
            assert await locked.metric(name, key="small", outcome=outcome) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_a_minute_are_those_of_usage(locked: Locked, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    admitted = total = 0
    while (answer := await locked.ask(SMALL, n=2, stream=stream, **options)).status_code == 200:
        text = answer.text.split("data: ")[-2] if stream else answer.text
        total += httpx.Response(200, text=text).json()["usage"]["total_tokens"]
        admitted += 1
    assert answer.status_code == 429
    assert "30 tokens a minute" in answer.json()["error"]["message"]
    assert await locked.metric("baton_key_tokens_total", key="small") == total
    assert total >= 30 > total * (admitted - 1) / admitted
    wait_s = int(answer.headers["retry-after"])
    assert wait_s == -(-(total - 30 + 1) * 2 // 1)
    locked.now += wait_s
    assert (await locked.ask(SMALL)).status_code == 200


async def test_a_client_that_leaves_pays_for_what_it_got(tokenizer: Tokenizer, says: Says) -> None:
    locked = Locked(says("a b c d e f g", gate=asyncio.Semaphore(2)), tokenizer)
    body = b'{"prompt": "x", "stream": true, "max_tokens": 50}'
    scope = post_scope("/v1/completions", [(b"authorization", b"Bearer " + SMALL.encode())])
    bodies, left = [body], asyncio.Event()

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop()}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            left.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(5):
        await locked.app(scope, receive, send)
    (stream,) = locked.core.streams
    assert stream.outcome == "cancelled"
    assert stream.num_sent in (1, 2)
    num_prompt = len(stream.spec.prompt_ids)
    charged = await locked.metric("baton_key_tokens_total", key="small")
    assert charged == num_prompt + stream.num_sent
    await locked.http.aclose()


async def test_what_the_core_did_not_accept_costs_no_tokens(
    tokenizer: Tokenizer, says: Says
) -> None:
    locked = Locked(says(accept=0), tokenizer)
    assert (await locked.ask(SMALL)).status_code == 503
    assert await locked.metric("baton_key_tokens_total", key="small") == 0
    await locked.http.aclose()


async def test_logs_and_metrics_know_a_key_by_name_alone(
    locked: Locked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for key in (ALICE, "sk-wrong-0123456789abcdef", SLOW, SLOW, SLOW):
        await locked.ask(key)
    payers = [getattr(record, "key", None) for record in caplog.records]
    assert {"alice", "slow"} <= set(payers)
    said = caplog.text + str([vars(record) for record in caplog.records])
    said += (await locked.http.get("/metrics")).text
    for secret in (ALICE, SLOW, "sk-wrong"):
        assert secret not in said


async def test_openapi_tells_of_keys(locked: Locked) -> None:
    headers = {"authorization": f"Bearer {ALICE}"}
    schema = (await locked.http.get("/openapi.json", headers=headers)).json()
    chat = schema["paths"]["/v1/chat/completions"]["post"]
    assert {"401", "429"} <= set(chat["responses"])
    assert chat["security"] == [{"key": []}, {"x_api_key": []}]
    assert schema["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "security" not in schema["paths"]["/health"]["get"]


async def test_clients_of_anthropic_send_the_key_in_a_header_of_its_own(locked: Locked) -> None:
    async def ask(**headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await locked.http.post(MESSAGES, json=asked(), headers=names)

    check_error(await ask(), 401, "authentication_error")
    check_error(await ask(x_api_key="wrong"), 401, "authentication_error")
    check_error(await ask(x_api_key=""), 401, "authentication_error")
    check_error(
        await ask(authorization="Bearer wrong", x_api_key=ALICE), 401, "authentication_error"
    )
    assert (await ask(x_api_key=ALICE)).status_code == 200
    assert (await ask(authorization=f"Bearer {ALICE}", x_api_key="other")).status_code == 200
    assert [(await ask(x_api_key=SLOW)).status_code for _ in range(3)] == [200, 200, 429]
    limited = await ask(x_api_key=SLOW)
    check_error(limited, 429, "rate_limit_error")
    assert int(limited.headers["retry-after"]) >= 1
    assert [stream.spec.key for stream in locked.core.streams] == ["alice"] * 2 + ["slow"] * 2
