"""The events of an answer, however its text is cut, are those of Anthropic's SDK and make the
message that is sent whole."""

import asyncio
from typing import Any

import msgspec
import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.contract import Token
from coordinator.http.choice import Delta
from coordinator.http.messages.answer import MessagesAnswer
from coordinator.text.answer_parser import AnswerParser, ThoughtDivider
from coordinator.text.qwen_parser import QwenParser
from tests.coordinator.anthropic_sdk import events_of, message_of, strictly
from tests.coordinator.text.test_qwen_parser import PARAMETERS, call, cut

TEXT = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=20)
WORDS = TEXT.map(lambda text: text.strip() or "so")


def answer_to(*, thinks: bool = False, tells: bool = True, fills: bool = False) -> MessagesAnswer:
    parser = AnswerParser(ThoughtDivider() if thinks else None, QwenParser(PARAMETERS))
    return MessagesAnswer("msg_1", "m", 5, parser, includes_thought=tells, fills_context=fills)


def delta(text: str, finish: Any = None, stop: str | None = None) -> Delta:
    return Delta(text, [Token(1, None, finish)], [0], finish, stop)


def whole(answer: MessagesAnswer, last: Delta) -> Any:
    return strictly(Message, msgspec.json.encode(asyncio.run(answer.body([last]))))


def streamed(answer: MessagesAnswer, pieces: list[str], finish: Any = "stop") -> list[Any]:
    deltas = [delta(text) for text in pieces[:-1]] + [delta(pieces[-1], finish)]
    sent = [answer.events(0, each) for each in deltas]
    return events_of((b"".join(sent) + asyncio.run(answer.end())).decode())


def content(message: Any) -> list[dict[str, Any]]:
    """Without the ids of calls, which differ."""
    return [block.to_dict() | {"id": ""} for block in message.content]


def check_order(events: list[Any]) -> None:
    """Start, blocks one after the other, the end."""
    assert [event.type for event in events[:1]] == ["message_start"]
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]
    index, is_open = -1, False
    for event in events[1:-2]:
        match event.type:
            case "content_block_start":
                index, was_open, is_open = index + 1, is_open, True
                assert not was_open
            case "content_block_stop":
                assert is_open
                is_open = False
            case kind:
                assert kind == "content_block_delta"
                assert is_open
        assert event.index == index
    assert not is_open


@given(
    places=st.lists(st.integers(0, 10_000), max_size=30),
    thought=TEXT, before=TEXT, note=WORDS, between=TEXT, after=TEXT, thinks=st.booleans(),
)  # fmt: skip
def test_any_cut_gives_the_message_that_is_sent_whole(
    places: list[int], thought: str, before: str, note: str, between: str, after: str, thinks: bool
) -> None:
    text = (f"{thought}</think>" if thinks else "") + before
    text += call("note", text=note, tags='["a", 1]') + between + call("add", a="5") + after
    events = streamed(answer_to(thinks=thinks), cut(text, places))
    check_order(events)
    message, at_once = message_of(events), whole(answer_to(thinks=thinks), delta(text, "stop"))
    assert content(message) == content(at_once)
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [block.input for block in calls] == [{"text": note, "tags": ["a", 1]}, {"a": 5}]
    assert len({block.id for block in calls}) == 2
    assert message.stop_reason == at_once.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(cut(text, places))


@given(place=st.integers(0, 200), thinks=st.booleans())
def test_an_answer_may_end_anywhere(place: int, thinks: bool) -> None:
    text = "So.</think>Well: " + call("note", text='a "quoted" word\n', tags="[1, 2]")
    text = text[: place % len(text) + 1]
    events = streamed(answer_to(thinks=thinks), list(text), "length")
    check_order(events)
    message = message_of(events)
    at_once = whole(answer_to(thinks=thinks), delta(text, "length"))
    assert message.stop_reason == at_once.stop_reason == "max_tokens"
    assert [block.type for block in message.content] == [block.type for block in at_once.content]


@pytest.mark.parametrize(
    ("last", "fills", "reason", "sequence"),
    [
        (delta("Hi", "stop"), False, "end_turn", None),
        (delta("Hi", "length"), False, "max_tokens", None),
        (delta("Hi", "length"), True, "model_context_window_exceeded", None),
        (delta("Hi", "stop", "END"), True, "stop_sequence", "END"),
        (delta(call("add", a="1"), "stop"), False, "tool_use", None),
        (delta(call("add", a="1"), "length"), False, "max_tokens", None),
        (delta("", "stop"), False, "end_turn", None),
    ],
)
def test_the_reason_of_the_end(last: Delta, fills: bool, reason: str, sequence: str | None) -> None:
    message = whole(answer_to(fills=fills), last)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert message.usage.to_dict() == {
        "input_tokens": 5, "output_tokens": 1, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }  # fmt: skip
    answer = answer_to(fills=fills)
    events = answer.events(0, last) + asyncio.run(answer.end())
    end = events_of(events.decode())[-2]
    assert (end.delta.stop_reason, end.delta.stop_sequence) == (reason, sequence)


def test_a_thought_is_signed_and_told_only_if_wanted() -> None:
    text = "It is 5.</think>Five."
    told, untold = (
        whole(answer_to(thinks=True, tells=tells), delta(text, "stop")) for tells in (True, False)
    )
    assert [block.type for block in told.content] == ["thinking", "text"]
    assert told.content[0].thinking == "It is 5."
    assert untold.content[0].thinking == ""
    assert told.content[0].signature == untold.content[0].signature != ""
    assert told.content[1].text == untold.content[1].text == "Five."
