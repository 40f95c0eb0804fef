"""Anthropic's client: messages whole and streamed, every answer read strictly by its types."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from tests.clients.api import MODEL, TIMEOUT_S, Api
from tests.clients.tools import (
    SHELLS,
    SHELLS_LEFT,
    Calculator,
    Lookup,
    calculator,
    called,
    last_number,
)

ASKED: list[Any] = [{"role": "user", "content": SHELLS}]
KINDS = {"calculator": Calculator, "lookup": Lookup}
TOOLS = [
    {"name": name, "description": kind.__doc__, "input_schema": kind.model_json_schema()}
    for name, kind in KINDS.items()
]
GIVEN: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": ASKED}
GREEDY = {"extra_body": {"temperature": 0}}


@pytest.fixture
def claude(api: Api) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=api.url, api_key="none", timeout=TIMEOUT_S, max_retries=0,
        _strict_response_validation=True,
    ) as made:  # fmt: skip
        yield made


def ask(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    return client.messages.create(**GIVEN | GREEDY | fields)


def prompt_tokens(message: anthropic.types.Message) -> int:
    """With those that came from the prefix cache, where the prompt was asked before."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_a_question_whole_streamed_and_counted(claude: anthropic.Anthropic, api: Api) -> None:
    whole = ask(claude, system="Be brief.", metadata={"user_id": "u"})
    assert last_number(whole.content[0].text) == SHELLS_LEFT
    assert (whole.stop_reason, whole.model, whole.id[:4]) == ("end_turn", MODEL, "msg_")
    assert whole._request_id
    record = httpx.get(f"{api.base}/requests/{whole.id}").json()
    assert record["state"] == "finished"
    with claude.messages.stream(**GIVEN | GREEDY, system="Be brief.") as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == whole.content[0].text == streamed.content[0].text
    assert prompt_tokens(streamed) == prompt_tokens(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model=MODEL, messages=ASKED, system="Be brief.")
    assert counted.input_tokens == prompt_tokens(whole)


def test_events_come_in_order(claude: anthropic.Anthropic) -> None:
    events = list(ask(claude, stream=True))
    kinds = [event.type for event in events if event.type != "content_block_delta"]
    assert kinds == [
        "message_start", "content_block_start", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert events[2].type == "content_block_delta"


def test_limits_and_stop_sequences(claude: anthropic.Anthropic) -> None:
    text = ask(claude).content[0].text
    short = ask(claude, max_tokens=5)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 5)
    assert text.startswith(short.content[0].text)
    stop = text[5:8]
    stopped = ask(claude, stop_sequences=["never there", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].text == text[: text.index(stop)]
    assert ask(claude, max_tokens=8_000).content[0].text == text


def test_an_answer_that_is_begun_goes_on(claude: anthropic.Anthropic) -> None:
    text = ask(claude).content[0].text
    begun, rest = text[:10], text[10:]
    answer = ask(claude, messages=[*ASKED, {"role": "assistant", "content": begun}])
    assert last_number(answer.content[0].text) == last_number(rest)


@pytest.mark.parametrize(
    "thinking", [{"type": "enabled", "budget_tokens": 24}, {"type": "adaptive"}]
)
def test_thoughts_and_their_signatures_go_round(claude: anthropic.Anthropic, thinking: Any) -> None:
    answer = ask(claude, thinking=thinking, max_tokens=400)
    assert answer.content[0].type == "thinking"
    assert answer.content[0].signature
    with claude.messages.stream(**GIVEN | GREEDY, thinking=thinking) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_message()
    assert {"thinking", "signature"} <= kinds
    assert streamed.content[0] == answer.content[0]
    told = {"role": "assistant", "content": answer.content}
    again = ask(claude, messages=[*ASKED, told, {"role": "user", "content": "Sure?"}])
    assert again.usage.output_tokens > 0


def test_parse_gives_the_type_that_was_asked_for(claude: anthropic.Anthropic) -> None:
    class Answer(BaseModel):
        number: int
        sure: bool

    answer = claude.messages.parse(**GIVEN, output_format=Answer)
    assert isinstance(answer.parsed_output, Answer)
    with claude.messages.stream(**GIVEN, output_format=Answer) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Answer)


@pytest.mark.parametrize("name", KINDS)
def test_a_tool_that_must_be_called(claude: anthropic.Anthropic, name: str) -> None:
    choice = {"type": "tool", "name": name}
    whole = ask(claude, tools=TOOLS, tool_choice=choice)
    (call,) = whole.content
    assert (call.type, call.name, whole.stop_reason) == ("tool_use", name, "tool_use")
    KINDS[name].model_validate(call.input)
    with claude.messages.stream(**GIVEN | GREEDY, tools=TOOLS, tool_choice=choice) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert len(pieces) > 1
    assert streamed.input == call.input
    assert streamed.id.startswith("toolu_")


def test_any_tool_and_no_tool(claude: anthropic.Anthropic) -> None:
    one = {"type": "any", "disable_parallel_tool_use": True}
    (call,) = ask(claude, tools=TOOLS, tool_choice=one, extra_body={"temperature": 1.5}).content
    KINDS[call.name].model_validate(call.input)
    (text,) = ask(claude, tools=TOOLS, tool_choice={"type": "none"}).content
    assert text.type == "text"


def test_three_forced_calls_and_their_results_and_then_text(claude: anthropic.Anthropic) -> None:
    messages = list(ASKED)
    for name in ("lookup", "calculator", "calculator"):
        choice = {"type": "tool", "name": name}
        said = ask(claude, messages=messages, tools=TOOLS, tool_choice=choice)
        messages.append({"role": "assistant", "content": said.content})
        messages.append({"role": "user", "content": results_of(said)})
    answer = ask(claude, messages=messages, tools=TOOLS, tool_choice={"type": "none"})
    assert answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_the_clients_own_agent_ends_with_the_right_number(claude: anthropic.Anthropic) -> None:
    runner = claude.beta.messages.tool_runner(
        **GIVEN, **GREEDY, tools=[anthropic.beta_tool(calculator)], max_iterations=6
    )
    last = runner.until_done()
    assert last_number(last.content[-1].text) == SHELLS_LEFT


def test_errors_have_their_types(claude: anthropic.Anthropic, api: Api) -> None:
    with pytest.raises(anthropic.NotFoundError, match="other") as not_found:
        ask(claude, model="other")
    assert not_found.value.type == "not_found_error"
    assert not_found.value.request_id
    image = {"type": "image", "source": {"type": "url", "url": "http://t"}}
    with pytest.raises(anthropic.BadRequestError, match="type 'image' are not supported"):
        ask(claude, messages=[{"role": "user", "content": [image]}])
    search = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        ask(claude, tools=[search])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as too_long:
        ask(claude, system="on and on " * 5_000)
    assert too_long.value.error_code == "context_length_exceeded"


async def test_a_client_that_leaves_ends_its_request(claude: anthropic.Anthropic, api: Api) -> None:
    stream = ask(claude, stream=True, max_tokens=3_000, extra_body={"temperature": 1.5})
    assert next(iter(stream)).type == "message_start"
    stream.close()
    await api.idle()


def results_of(said: anthropic.types.Message) -> list[dict[str, Any]]:
    """Those of its calls; the first as blocks."""
    found: list[dict[str, Any]] = []
    for call in said.content:
        assert call.type == "tool_use"
        result = called(call.name, call.input)
        found.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
    found[0] |= {"content": [{"type": "text", "text": found[0]["content"]}], "is_error": False}
    return found
