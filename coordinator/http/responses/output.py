"""From the text of an answer to the items of a response's output, and the events about them."""

from collections.abc import Sequence
from secrets import token_hex

from coordinator.http.response_schemas import TokenLogprob
from coordinator.http.responses.events import Event
from coordinator.http.responses.functions import FunctionNames
from coordinator.http.responses.item_ids import ItemPrefix, item_id
from coordinator.http.responses.open_items import (
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenSummary,
    OpenThought,
)
from coordinator.http.responses.schemas import ItemStatus, OutputItem
from coordinator.text.answer_parser import AnswerParser, Parts, Thought
from coordinator.text.tool_events import Arguments, CallBegins, Content


class Output:
    """Takes the text of one answer in pieces of any length. ``items``: those that have ended; their
    ids derive from ``response_id``. ``names``: those of the functions that may be called.
    ``summarizes``: the thought is returned as its summary."""

    def __init__(
        self, response_id: str, parser: AnswerParser, names: FunctionNames, *, summarizes: bool
    ) -> None:
        self.items: list[OutputItem] = []
        self._response_id = response_id
        self._parser = parser
        self._names = names
        self._thought = OpenSummary if summarizes else OpenThought
        self._open: OpenItem | None = None
        self._untold: list[TokenLogprob] = []

    def push(
        self, text: str, logprobs: Sequence[TokenLogprob] = (), *, last: bool = False
    ) -> list[Event]:
        """The events of a piece of text. ``logprobs``: those of the tokens of ``text``; a message
        returns its own."""
        parts = self._parser.push(text, last=last)
        told = self._message_logprobs(text, parts, logprobs)
        events: list[Event] = []
        for piece in parts.pieces:
            match piece:
                case Thought(text=thought):
                    events += self._text_item(self._thought, "rs", thought)
                case Content(text=content):
                    events += self._text_item(OpenMessage, "msg", content, told)
                    told = []
                case CallBegins(name=name):
                    events += self._end("completed")
                    call_id, function = f"call_{token_hex(12)}", self._names.apart(name)
                    events += self._begin(OpenCall(self._id("fc"), self._index, call_id, function))
                case Arguments(text=arguments):
                    assert isinstance(self._open, OpenCall), "arguments follow their call"
                    events += self._open.more(arguments)
        return events

    def end(self, status: ItemStatus) -> list[Event]:
        """End the output, and its last item with ``status``. A completed output has at least a
        message or a call, if only an empty message."""
        thought_only = isinstance(self._open, self._thought) or not (self._open or self.items)
        events = self._end(status)
        if thought_only and status == "completed":
            events += self._begin(OpenMessage(self._id("msg"), self._index))
            events += self._end(status)
        return events

    def _text_item(
        self,
        kind: type[OpenMessage] | type[OpenThought] | type[OpenSummary],
        prefix: ItemPrefix,
        text: str,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> list[Event]:
        """Add a piece of text to the open item, or to a new one if the open item is of another
        kind."""
        events: list[Event] = []
        if not isinstance(self._open, kind):
            events += self._end("completed")
            events += self._begin(kind(self._id(prefix), self._index))
        assert self._open is not None
        return events + self._open.more(text, logprobs)

    def _begin(self, item: OpenItem) -> list[Event]:
        self._open = item
        return item.begin()

    def _end(self, status: ItemStatus) -> list[Event]:
        if self._open is None:
            return []
        item, events = self._open.end(status)
        self.items.append(item)
        self._open = None
        return events

    @property
    def _index(self) -> int:
        return len(self.items)

    def _id(self, prefix: ItemPrefix) -> str:
        return item_id(prefix, self._response_id, self._index)

    def _message_logprobs(
        self, text: str, parts: Parts, logprobs: Sequence[TokenLogprob]
    ) -> list[TokenLogprob]:
        """The log-probabilities of the content in ``parts``, with those of tokens whose text was
        held back until now."""
        told = [*self._untold, *logprobs]
        self._untold = []
        if parts.content:
            return told
        before_message = not isinstance(self._open, OpenMessage) and text.isspace()
        if not parts and not before_message:
            self._untold = told
        return []
