"""Items of the output while they are written: the events of their beginning, their text, their
end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

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
    """``begin`` once, ``more`` for each piece of text, ``end`` once."""

    def begin(self) -> list[Event]: ...

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]: ...

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        """The whole item too."""
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


@dataclass
class OpenMessage(_Open):
    logprobs: list[TokenLogprob] = field(default_factory=list, kw_only=True)

    def begin(self) -> list[Event]:
        item = OutputMessage(id=self.item_id, status="in_progress", content=[])
        return [
            OutputItemAdded(output_index=self.index, item=item),
            ContentPartAdded(
                item_id=self.item_id, output_index=self.index, part=OutputText(text="")
            ),
        ]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        self.logprobs += logprobs
        return [
            OutputTextDelta(
                item_id=self.item_id, output_index=self.index, delta=text, logprobs=list(logprobs)
            )
        ]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        item_id, index, logprobs = self.item_id, self.index, self.logprobs
        part = OutputText(text=self.text, logprobs=logprobs)
        item = OutputMessage(id=item_id, status=status, content=[part])
        return item, [
            OutputTextDone(item_id=item_id, output_index=index, text=self.text, logprobs=logprobs),
            ContentPartDone(item_id=item_id, output_index=index, part=part),
            OutputItemDone(output_index=index, item=item),
        ]


@dataclass
class OpenThought(_Open):
    def begin(self) -> list[Event]:
        item = ReasoningItem(id=self.item_id, summary=[], content=[], status="in_progress")
        return [
            OutputItemAdded(output_index=self.index, item=item),
            ContentPartAdded(
                item_id=self.item_id, output_index=self.index, part=ReasoningText(text="")
            ),
        ]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        return [ReasoningTextDelta(item_id=self.item_id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        item_id, index, part = self.item_id, self.index, ReasoningText(text=self.text)
        item = ReasoningItem(id=item_id, summary=[], content=[part], status=status)
        return item, [
            ReasoningTextDone(item_id=item_id, output_index=index, text=self.text),
            ContentPartDone(item_id=item_id, output_index=index, part=part),
            OutputItemDone(output_index=index, item=item),
        ]


@dataclass
class OpenSummary(_Open):
    """A thought that is returned as its summary."""

    def begin(self) -> list[Event]:
        item = ReasoningItem(id=self.item_id, summary=[], status="in_progress")
        return [
            OutputItemAdded(output_index=self.index, item=item),
            SummaryPartAdded(
                item_id=self.item_id, output_index=self.index, part=SummaryText(text="")
            ),
        ]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        return [SummaryTextDelta(item_id=self.item_id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        item_id, index, part = self.item_id, self.index, SummaryText(text=self.text)
        item = ReasoningItem(id=item_id, summary=[part], status=status)
        return item, [
            SummaryTextDone(item_id=item_id, output_index=index, text=self.text),
            SummaryPartDone(item_id=item_id, output_index=index, part=part),
            OutputItemDone(output_index=index, item=item),
        ]


@dataclass
class OpenCall(_Open):
    call_id: str
    name: str

    def begin(self) -> list[Event]:
        return [OutputItemAdded(output_index=self.index, item=self._item("in_progress"))]

    def more(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> list[Event]:
        self.pieces.append(text)
        return [ArgumentsDelta(item_id=self.item_id, output_index=self.index, delta=text)]

    def end(self, status: ItemStatus) -> tuple[OutputItem, list[Event]]:
        item = self._item(status)
        done = ArgumentsDone(
            item_id=self.item_id, output_index=self.index, name=self.name,
            arguments=self.text,
        )  # fmt: skip
        return item, [done, OutputItemDone(output_index=self.index, item=item)]

    def _item(self, status: ItemStatus) -> FunctionCallItem:
        return FunctionCallItem(
            id=self.item_id, call_id=self.call_id, name=self.name, arguments=self.text,
            status=status,
        )  # fmt: skip
