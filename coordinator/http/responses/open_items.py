"""Items of the output while they are written: the events of their beginning, their text and their
end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET

from coordinator.http.chat_schemas import decoded_arguments
from coordinator.http.response_schemas import TokenLogprob
from coordinator.http.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
)
from coordinator.http.responses.functions import Function
from coordinator.http.responses.schemas import (
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    SummaryText,
)


class OpenItem(Protocol):
    """An item that is being written: ``begin`` once, ``more`` for each piece of text, ``end``
    once."""

    def begin(self) -> list[Event]: ...

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]: ...

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        """The last events, and the whole item."""
        ...


@dataclass
class _Open:
    """Item ``index`` of the output."""

    item_id: str
    index: int
    pieces: list[str] = field(default_factory=list, kw_only=True)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def place(self) -> dict[str, Any]:
        """The fields by which an event names the item."""
        return {"item_id": self.item_id, "output_index": self.index}

    def added(self, item: OutputItem) -> OutputItemAdded:
        return OutputItemAdded(output_index=self.index, item=item)

    def done(self, item: OutputItem) -> OutputItemDone:
        return OutputItemDone(output_index=self.index, item=item)


@dataclass
class OpenMessage(_Open):
    logprobs: list[TokenLogprob] = field(default_factory=list, kw_only=True)

    def begin(self) -> list[Event]:
        item = OutputMessage(id=self.item_id, status="in_progress", content=[])
        return [self.added(item), ContentPartAdded(**self.place, part=OutputText(text=""))]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        self.logprobs += logprobs
        told = list(logprobs)
        return [
            OutputTextDelta(
                item_id=self.item_id, output_index=self.index, delta=text, logprobs=told
            )
        ]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        part = OutputText(text=self.text, logprobs=self.logprobs)
        item = OutputMessage(id=self.item_id, status=status, content=[part])
        return item, [
            OutputTextDone(**self.place, text=part.text, logprobs=part.logprobs),
            ContentPartDone(**self.place, part=part),
            self.done(item),
        ]


@dataclass
class OpenThought(_Open):
    def begin(self) -> list[Event]:
        item = ReasoningItem(id=self.item_id, summary=[], content=[], status="in_progress")
        return [self.added(item), ContentPartAdded(**self.place, part=ReasoningText(text=""))]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        return [ReasoningTextDelta(item_id=self.item_id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        part = ReasoningText(text=self.text)
        item = ReasoningItem(id=self.item_id, summary=[], content=[part], status=status)
        return item, [
            ReasoningTextDone(**self.place, text=part.text),
            ContentPartDone(**self.place, part=part),
            self.done(item),
        ]


@dataclass
class OpenSummary(_Open):
    """A thought that is returned as its summary."""

    def begin(self) -> list[Event]:
        item = ReasoningItem(id=self.item_id, summary=[], status="in_progress")
        return [self.added(item), SummaryPartAdded(**self.place, part=SummaryText(text=""))]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        return [SummaryTextDelta(item_id=self.item_id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        part = SummaryText(text=self.text)
        item = ReasoningItem(id=self.item_id, summary=[part], status=status)
        return item, [
            SummaryTextDone(**self.place, text=part.text),
            SummaryPartDone(**self.place, part=part),
            self.done(item),
        ]


@dataclass
class OpenCall(_Open):
    call_id: str
    function: Function

    def begin(self) -> list[Event]:
        return [self.added(self._item("in_progress"))]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        return [ArgumentsDelta(item_id=self.item_id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        try:
            decoded_arguments(self.text)
        except ValueError:
            status = "incomplete"  # a stop string or the end of the turn cut them off
        item = self._item(status)
        done = ArgumentsDone(**self.place, name=self.function.name, arguments=item.arguments)
        return item, [done, self.done(item)]

    def _item(self, status: ItemStatus) -> FunctionCallItem:
        return FunctionCallItem(
            id=self.item_id, call_id=self.call_id, name=self.function.name,
            namespace=self.function.namespace or UNSET, arguments=self.text, status=status,
        )  # fmt: skip
