"""The order of a response's events, by the Responses API: what may follow what."""

from typing import Any


def check(events: list[Any]) -> list[Any]:
    """The items of the output as the events tell them; raises where one contradicts another."""
    created, in_progress, *middle, last = events
    assert (created.type, in_progress.type) == ("response.created", "response.in_progress")
    assert created.response.status == "in_progress"
    assert created.response.output == []
    assert {e.response.id for e in (created, in_progress, last)} == {created.response.id}
    items: list[Any] = []
    while middle and middle[0].type != "error":
        items.append(_item(middle, len(items)))
    if last.type != "response.failed":
        assert middle == []
        assert last.type in ("response.completed", "response.incomplete")
        assert last.response.status == last.type.removeprefix("response.")
    assert last.response.output == items
    return items


def _item(events: list[Any], index: int) -> Any:
    """Takes the events of one item away."""
    added = events.pop(0)
    assert added.type == "response.output_item.added"
    assert added.item.status == "in_progress"
    kind = added.item.type
    text = ""
    if kind != "function_call":
        _take(events, ("response.content_part.added", "response.reasoning_summary_part.added"))
    while events[0].type.endswith(".delta"):
        event = events.pop(0)
        assert event.item_id == added.item.id
        text += event.delta
    done = _take(events, _DONE[kind])
    assert (done.arguments if kind == "function_call" else done.text) == text
    if kind != "function_call":
        part = _take(events, ("response.content_part.done", "response.reasoning_summary_part.done"))
        assert part.part.text == text
    ended = _take(events, ("response.output_item.done",))
    for event in (added, ended):
        assert event.output_index == index
        assert event.item.id == added.item.id
    assert ended.item.status in ("completed", "incomplete")
    return ended.item


_DONE = {
    "message": ("response.output_text.done",),
    "reasoning": ("response.reasoning_text.done", "response.reasoning_summary_text.done"),
    "function_call": ("response.function_call_arguments.done",),
}


def _take(events: list[Any], types: tuple[str, ...]) -> Any:
    event = events.pop(0)
    assert event.type in types, event.type
    return event
