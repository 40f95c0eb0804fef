"""Models, health, readiness, metrics, tokens and the API's own description."""

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.contract import ServiceStatus
from coordinator.http.http_settings import HttpSettings
from coordinator.http.response_schemas import (
    Detokenized,
    ErrorBody,
    Health,
    Model,
    ModelList,
    Ready,
    Tokenized,
    Version,
)
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.fake_core import ClientOf, Says


async def test_models(says: Says, client_of: ClientOf, tokenizer: Tokenizer) -> None:
    client = client_of(says())
    listed = msgspec.json.decode((await client.get("/v1/models")).content, type=ModelList)
    assert [m.id for m in listed.data] == ["tiny"]
    assert listed.data[0].root == tokenizer.info.root
    assert listed.data[0].max_model_len == 512
    one = msgspec.json.decode((await client.get("/v1/models/tiny")).content, type=Model)
    assert one == listed.data[0]


async def test_a_model_id_may_hold_slashes(says: Says, tokenizer: Tokenizer) -> None:
    from tests.coordinator.apps import make_app

    app = make_app(says(), tokenizer, HttpSettings("Qwen/Qwen3.5-35B-A3B"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        for path in ("Qwen/Qwen3.5-35B-A3B", "Qwen%2FQwen3.5-35B-A3B"):
            assert (await client.get(f"/v1/models/{path}")).status_code == 200


async def test_health_version_status(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())
    msgspec.json.decode((await client.get("/health")).content, type=Health)
    msgspec.json.decode((await client.get("/version")).content, type=Version)
    msgspec.json.decode((await client.get("/status")).content, type=ServiceStatus)


async def test_every_get_route_answers_head_without_a_body(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)
    document = (await client.get("/openapi.json")).json()["paths"]
    paths = [path for path, methods in document.items() if "get" in methods and "{" not in path]
    assert {"/health", "/ready", "/v1/models", "/metrics", "/status", "/version"} <= set(paths)
    for path in [*paths, "/ping", "/openapi.json", "/v1/models/tiny"]:
        response = await client.head(path)
        assert (response.status_code, response.content) == (200, b""), path
        assert int(response.headers["content-length"]) > 0, path
    assert (await client.head("/v1/models/other")).status_code == 404
    assert (await client.head("/v1/completions")).status_code == 405
    core.problems = ("no live decode worker",)
    assert (await client.head("/ready")).status_code == 503
    assert set(document["/health"]) == {"get"}


async def test_ready_or_why_not(says: Says, client_of: ClientOf) -> None:
    core = says()
    client = client_of(core)
    msgspec.json.decode((await client.get("/ready")).content, type=Ready)
    core.problems = ("no live decode worker", "redis is gone")
    response = await client.get("/ready")
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["problems"] == list(core.problems)
    assert (
        "no live decode worker"
        in msgspec.json.decode(response.content, type=ErrorBody).error.message
    )
    assert (await client.get("/health")).status_code == 200


async def test_metrics_count_responses_by_route_not_by_path(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(says())
    for path in ("/v1/models/a", "/v1/models/b", "/x", "/y"):
        await client.get(path)
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    counts = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if sample.name == "baton_http_responses_total"
    }
    assert counts == {("/v1/models/{model_id:path}", "404"): 2, ("unmatched", "404"): 2}


async def test_tokenize_and_back(says: Says, client_of: ClientOf, tokenizer: Tokenizer) -> None:
    client = client_of(says())
    text = "héllo 🙂<|im_end|>"
    response = await client.post("/tokenize", json={"prompt": text})
    found = msgspec.json.decode(response.content, type=Tokenized)
    assert found.count == len(found.tokens)
    assert found.max_model_len == 512
    response = await client.post("/detokenize", json={"tokens": found.tokens})
    assert msgspec.json.decode(response.content, type=Detokenized).prompt == text
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    response = await client.post("/tokenize", json={"messages": messages})
    rendered = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert response.json()["tokens"] == rendered.tolist()
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "fox " * 4000}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "fox " * 4000}]}, "messages"),
        ("/detokenize", {"tokens": [65] * 2049}, "tokens"),
    ],
)
async def test_lookups_are_bounded_by_the_context(
    says: Says, client_of: ClientOf, path: str, body: dict[str, object], param: str
) -> None:
    response = await client_of(says()).post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "at most 2048 are taken" in error["message"]


async def test_a_text_longer_than_the_context_is_told_in_tokens(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("fox " * 600).tolist()
    assert len(ids) > 512
    client = client_of(says())
    assert (await client.post("/tokenize", json={"prompt": "fox " * 600})).json()["tokens"] == ids
    assert (await client.post("/detokenize", json={"tokens": ids})).status_code == 200


async def test_openapi_is_truthful(says: Says, client_of: ClientOf) -> None:
    schema = (await client_of(says()).get("/openapi.json")).json()
    chat = schema["paths"]["/v1/chat/completions"]["post"]
    assert set(chat["responses"]) == {"200", "400", "404", "408", "413", "415", "500", "503", "504"}
    body = schema["components"]["schemas"]["ChatRequest"]
    assert {"messages", "stream", "max_tokens", "tools"} <= set(body["properties"])
    assert body["required"] == ["messages"]
    schemas = schema["components"]["schemas"]
    audio = schemas["ChatRequest"]["properties"]["audio"]
    assert audio["enum"] == [None, False, [], {}, ""]
    assert schemas["ChatCompletion"]["required"] == [
        "id", "object", "created", "model", "system_fingerprint", "choices", "usage",
    ]  # fmt: skip
    assert set(schemas["WorkerStatus"]["required"]) == set(schemas["WorkerStatus"]["properties"])
    text = str(schema)
    assert "'422'" not in text
    assert "(?" not in text, "engines without look-ahead cannot read a pattern"
    name = schemas["FunctionSpec"]["properties"]["name"]
    assert name["pattern"] == "^[A-Za-z0-9_.:-]{1,128}$"
    asked = schemas["ChatRequest"]["properties"]["request_id"]["anyOf"]
    assert asked[0]["pattern"] == "^[A-Za-z0-9._:/+=@#~-]{1,128}$"
    refs = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert refs <= set(schema["components"]["schemas"])


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(ValueError, match="max_n"):
        HttpSettings("tiny", max_n=0)
    with pytest.raises(ValueError, match="served_model_name"):
        HttpSettings("")
