"""An answer's text may come in pieces of any length: the items and the order of events are the
same."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from coordinator.http.responses.functions import FunctionNames
from coordinator.http.responses.output import Output
from coordinator.text.answer_parser import AnswerParser, ThoughtDivider
from coordinator.text.qwen_parser import QwenParser

_CALL = "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
_TEXTS = st.lists(
    st.sampled_from(
        ["a", " ", "\n", "</think>", "<tool_call>", _CALL, "</tool_call>", "<", "é🙂", "\n\n"]
    ),
    max_size=12,
).map("".join)


@given(text=_TEXTS, cuts=st.lists(st.integers(0, 400)), thinks=st.booleans(), sums=st.booleans())
def test_cuts_change_nothing(text: str, cuts: list[int], thinks: bool, sums: bool) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[begin:end] for begin, end in pairwise(places)] or [""]
    whole, events = _items([text], thinks, sums)
    assert _check(events) == len(whole)
    cut, events = _items(pieces, thinks, sums)
    assert _check(events) == len(cut)
    assert cut == whole


def _items(pieces: list[str], thinks: bool, sums: bool) -> tuple[list[Any], list[Any]]:
    """The items without the ids of their calls, and all events."""
    parser = AnswerParser(ThoughtDivider() if thinks else None, QwenParser({"add": {}}))
    output = Output("resp_1", parser, FunctionNames(None), summarizes=sums)
    events = [event for piece in pieces[:-1] for event in output.push(piece)]
    events += output.push(pieces[-1], last=True)
    events += output.end("completed")
    items = json.decode(json.encode(output.items))
    return [{k: v for k, v in item.items() if k != "call_id"} for item in items], events


def _check(events: list[Any]) -> int:
    """How many items the events tell. Each begins and ends once, in order, and its deltas add up to
    what its end says."""
    text, open_id, num_items = "", "", 0
    for each in events:
        event = json.decode(json.encode(each))
        assert event["output_index"] == num_items
        match event["type"].split(".")[1:]:
            case ["output_item", "added"]:
                assert open_id == ""
                open_id, text = event["item"]["id"], ""
            case ["output_item", "done"]:
                assert event["item"]["id"] == open_id
                open_id, num_items = "", num_items + 1
            case [_, "delta"]:
                assert event["item_id"] == open_id
                assert event["delta"]
                text += event["delta"]
            case ["output_text" | "reasoning_text" | "reasoning_summary_text", "done"]:
                assert event["text"] == text
            case ["function_call_arguments", "done"]:
                assert event["arguments"] == text
    assert open_id == ""
    return num_items
