"""``truncation: "auto"``: leaves out the oldest turns of a conversation that is too long. Pure."""

from bisect import bisect_left
from collections.abc import Callable

from coordinator.http.chat_schemas import ChatMessage

_SYSTEM = ("system", "developer")


def fitting(
    messages: list[ChatMessage], fits: Callable[[list[ChatMessage]], bool]
) -> list[ChatMessage]:
    """The longest end of the conversation that fits and begins with a user's message, after all
    system messages that were before it; where none fits, the shortest."""
    if fits(messages):
        return messages
    starts = [i for i, message in enumerate(messages) if message.role == "user"]

    def from_turn(turn: int) -> list[ChatMessage]:
        start = starts[turn]
        system = [message for message in messages[:start] if message.role in _SYSTEM]
        return [*system, *messages[start:]]

    first = bisect_left(range(len(starts)), True, key=lambda turn: fits(from_turn(turn)))
    return from_turn(min(first, len(starts) - 1)) if starts else messages
