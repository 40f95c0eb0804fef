"""Paths of vLLM, SGLang, SageMaker and Anthropic that their clients ask."""

from typing import Any

import httpx
import msgspec
from anthropic.types import ModelInfo as AnthropicModelInfo

from coordinator.core.contract import ServiceStatus
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import USER, check_error
from tests.coordinator.fake_core import ClientOf, FakeCore, Says

ANTHROPIC = {"anthropic-version": "2023-06-01"}


class Busy(FakeCore):
    def status(self) -> ServiceStatus:
        return ServiceStatus(True, (), False, 3, 4, True, ())


async def got(client: httpx.AsyncClient, path: str, **options: Any) -> Any:
    answer = await client.get(path, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_models_in_anthropics_form(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())
    listed = await got(client, "/v1/models", headers=ANTHROPIC)
    (model,) = listed.pop("data")
    assert listed == {"first_id": "tiny", "last_id": "tiny", "has_more": False}
    found = AnthropicModelInfo.model_validate_json(msgspec.json.encode(model))
    assert (found.id, found.display_name, found.type) == ("tiny", "tiny", "model")
    assert found.max_input_tokens == 512
    assert await got(client, "/v1/models/tiny", headers=ANTHROPIC) == model
    assert (await got(client, "/v1/models"))["object"] == "list"


async def test_the_load_and_the_state(client_of: ClientOf) -> None:
    client = client_of(Busy(lambda _: []))
    assert await got(client, "/load") == {"server_load": 7}
    assert await got(client, "/stats") == await got(client, "/status")


async def test_the_model_and_the_server(
    says: Says, client_of: ClientOf, tokenizer: Tokenizer
) -> None:
    client = client_of(says())
    for path in ("/model_info", "/get_model_info"):
        found = await got(client, path)
        assert found["model_path"] == found["tokenizer_path"] == tokenizer.info.root
        assert found["is_generation"] is True
    for path in ("/server_info", "/get_server_info"):
        found = await got(client, path)
        assert (found["served_model_name"], found["context_length"]) == ("tiny", 512)
        assert found["status"] == "ready"
    config = await got(client, "/tokenizer_info")
    assert "add_generation_prompt" in config["chat_template"]


async def test_invocations_are_chats_or_completions(says: Says, client_of: ClientOf) -> None:
    client = client_of(says())

    async def invoke(**body: Any) -> httpx.Response:
        return await client.post("/invocations", json=body)

    assert (await invoke(messages=USER)).json()["object"] == "chat.completion"
    assert (await invoke(prompt="Hi")).json()["object"] == "text_completion"
    long = "Hi " * 40_000  # for a parser process
    answer = await invoke(messages=[{"role": "user", "content": long}], truncate_prompt_tokens=5)
    assert check_error(answer, 400)["code"] == "context_length_exceeded"
    streamed = await invoke(messages=USER, stream=True)
    assert "chat.completion.chunk" in streamed.text
    check_error(await invoke(), 400, "prompt")
    check_error(await invoke(messages=[]), 400, "messages")
    check_error(await client.post("/invocations", content=b"{"), 400)
