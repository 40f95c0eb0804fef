"""Every field that OpenAI or vLLM have is honoured, refused, or ignored for a written reason."""

from typing import Any

import httpx
import msgspec
import pytest

from coordinator.http.chat_schemas import StructuredOutputs
from coordinator.http.known_fields import IGNORED
from coordinator.http.messages.requests import IGNORED as MESSAGES_IGNORED
from coordinator.http.messages.requests import MessagesRequest
from coordinator.http.request_fields import RequestBody, unsupported_fields
from coordinator.http.request_schemas import ChatRequest, CompletionRequest, TokenizeRequest
from coordinator.http.responses.request import ResponseRequest
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator import api_table
from tests.coordinator import other_servers as others
from tests.coordinator.answers import CHAT, COMPLETIONS, USER, check_error, post
from tests.coordinator.fake_core import ClientOf, Says

RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"
BODIES: dict[str, tuple[type[RequestBody], dict[str, Any]]] = {
    CHAT: (ChatRequest, {"messages": USER}),
    COMPLETIONS: (CompletionRequest, {"prompt": "Hi"}),
    RESPONSES: (ResponseRequest, {"input": "Hi"}),
    TOKENIZE: (TokenizeRequest, {"messages": USER}),
}
UNSUPPORTED = [
    (path, name, accepted)
    for path, (schema, _) in BODIES.items()
    for name, accepted in unsupported_fields(schema).items()
]


@pytest.mark.parametrize(
    ("schema", "known"),
    [
        (MessagesRequest, others.VLLM_MESSAGES | others.ANTHROPIC_MESSAGES),
        (ChatRequest, others.VLLM_CHAT | others.VLLM_BEFORE | others.OPENAI_CHAT),
        (CompletionRequest, others.VLLM_COMPLETION | others.VLLM_BEFORE | others.OPENAI_COMPLETION),
        (ResponseRequest, others.VLLM_RESPONSES | others.OPENAI_RESPONSES),
        (TokenizeRequest, others.VLLM_TOKENIZE),
        (StructuredOutputs, others.VLLM_STRUCTURED),
    ],
)
def test_every_field_of_other_servers_is_known(
    schema: type[RequestBody], known: frozenset[str]
) -> None:
    fields = set(schema.__struct_fields__)
    ignored = set(MESSAGES_IGNORED if schema is MessagesRequest else IGNORED)
    assert known - fields - ignored == set()
    if schema is not ResponseRequest:  # a response is stored, and tells these fields
        assert fields & ignored == set()


@pytest.mark.parametrize(("path", "name", "accepted"), UNSUPPORTED)
async def test_an_unsupported_field_is_refused_by_name(
    checked_client: httpx.AsyncClient, path: str, name: str, accepted: list[Any]
) -> None:
    for value in ({"a": [1]}, [7], "other", 12, -2.5, [[], {}], "x" * 1000):
        assert value not in accepted
        body = BODIES[path][1] | {name: value}
        error = check_error(await checked_client.post(path, json=body), 400, name)
        assert error["code"] == "unsupported_parameter"


@pytest.mark.parametrize("path", BODIES)
async def test_their_harmless_values_pass(says: Says, client_of: ClientOf, path: str) -> None:
    schema, body = BODIES[path]
    client = client_of(says())
    fields = unsupported_fields(schema)
    for i in range(max(map(len, fields.values()))):
        some = {name: values[i % len(values)] for name, values in fields.items()}
        response = await client.post(path, json=body | some)
        assert response.status_code == 200, response.text


async def test_a_field_that_is_ignored_on_purpose_may_be_anything(
    says: Says, client_of: ClientOf
) -> None:
    client = client_of(says())
    plain = (await post(client, CHAT, messages=USER))["choices"]
    for value in (True, "x", {"a": "b"}, [1]):
        fields = dict.fromkeys(IGNORED, value)
        assert (await post(client, CHAT, messages=USER, **fields))["choices"] == plain


@pytest.mark.parametrize("name", sorted(unsupported_fields(StructuredOutputs)))
async def test_a_form_that_is_not_supported_is_refused(
    checked_client: httpx.AsyncClient, name: str
) -> None:
    outputs = {"json": {"type": "object"}, name: True}
    body = {"messages": USER, "structured_outputs": outputs}
    check_error(await checked_client.post(CHAT, json=body), 400, f"structured_outputs.{name}")


def test_the_values_that_pass_are_in_the_schema() -> None:
    schema = msgspec.json.schema(ChatRequest)["$defs"]["ChatRequest"]["properties"]
    for name, values in unsupported_fields(ChatRequest).items():
        assert schema[name]["enum"] == values


def test_the_page_says_what_the_schemas_say(tokenizer: Tokenizer) -> None:
    written = api_table.PAGE.read_text()
    assert written == api_table.page(api_table.app_of(tokenizer)), (
        "run: python -m tests.coordinator.api_table"
    )
