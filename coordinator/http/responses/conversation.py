"""From the items of a conversation to the messages that the chat template renders, without the
oldest ones if the conversation is too long. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from coordinator.http.chat_schemas import CalledFunction, CalledTool, ChatMessage
from coordinator.http.request_fields import FieldError
from coordinator.http.responses.functions import Function
from coordinator.http.responses.items import InputItem, text_of

ITEM_NOT_FOUND = "item_not_found"
_SYSTEM = ("system", "developer")


class Earlier(Struct, frozen=True):
    """What earlier responses hold of a conversation. ``items``: those of all turns before this one.
    ``referenced``: those that ``item_reference`` items of this turn name."""

    items: list[InputItem] = []
    referenced: dict[str, InputItem] = {}

    @staticmethod
    def decoded(data: bytes) -> "Earlier":
        return msgspec.json.decode(data, type=Earlier) if data else Earlier()


def new_items(given: str | list[InputItem], referenced: Mapping[str, InputItem]) -> list[InputItem]:
    """The items of this turn, with references resolved. Raises FieldError."""
    if isinstance(given, str):
        return [InputItem(role="user", content=given)]
    return [_resolved(item, referenced) for item in given]


def messages_of(instructions: str | None, items: Sequence[InputItem]) -> list[ChatMessage]:
    """The messages of ``items``. Raises FieldError for a result without its call."""
    messages: list[ChatMessage] = []
    if instructions is not None:
        messages.append(ChatMessage(role="system", content=instructions))
    thought = ""  # for the next message of the assistant
    called: set[str | None] = set()
    for item in items:
        if item.is_cut_off:
            continue  # no template can render its arguments, which are not JSON
        match item.type:
            case "reasoning":
                thought += text_of(item.content) or text_of(item.summary)
                continue
            case "function_call":
                if thought or not _may_call(messages):
                    messages.append(_assistant("", thought))
                _add_call(messages[-1], item)
                called.add(item.call_id)
            case "function_call_output":
                if item.call_id not in called:
                    call_id = (item.call_id or "")[:64]
                    problem = f"no function call with the call_id {call_id!r} has been completed"
                    raise FieldError("input", problem)
                content = text_of(item.output)
                messages.append(
                    ChatMessage(role="tool", content=content, tool_call_id=item.call_id)
                )
            case _ if item.role == "assistant":
                messages.append(_assistant(text_of(item.content), thought))
            case _:
                if thought:
                    messages.append(_assistant("", thought))
                messages.append(ChatMessage(role=item.role or "", content=text_of(item.content)))
        thought = ""
    return messages


def fitting(
    messages: list[ChatMessage], fits: Callable[[list[ChatMessage]], bool]
) -> list[ChatMessage]:
    """The messages for ``truncation: "auto"``: the longest end of the conversation that fits and
    begins with a user's message, after all system messages before it. If none fits, the shortest
    end."""
    if fits(messages):
        return messages
    starts = [i for i, message in enumerate(messages) if message.role == "user"]

    def from_turn(turn: int) -> list[ChatMessage]:
        start = starts[turn]
        system = [message for message in messages[:start] if message.role in _SYSTEM]
        return [*system, *messages[start:]]

    first = bisect_left(range(len(starts)), True, key=lambda turn: fits(from_turn(turn)))
    return from_turn(min(first, len(starts) - 1)) if starts else messages


def _resolved(item: InputItem, referenced: Mapping[str, InputItem]) -> InputItem:
    if item.type != "item_reference":
        return item
    assert item.id is not None, "checked with the item"
    if item.id not in referenced:
        problem = f"there is no item {item.id[:64]!r}; only those of stored responses may be named"
        raise FieldError("input", problem, ITEM_NOT_FOUND)
    return referenced[item.id]


def _assistant(content: str, thought: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, reasoning_content=thought or None)


def _may_call(messages: Sequence[ChatMessage]) -> bool:
    return bool(messages) and messages[-1].role == "assistant"


def _add_call(message: ChatMessage, item: InputItem) -> None:
    assert item.call_id is not None
    assert item.name is not None
    name = Function(item.namespace or "", item.name).joined
    function = CalledFunction(name=name, arguments=item.arguments or "{}")
    message.tool_calls = message.tool_calls or []
    message.tool_calls.append(CalledTool(id=item.call_id, function=function))
