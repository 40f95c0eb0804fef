"""From the pieces of an answer to the events of its blocks, and from these to whole blocks."""

import hashlib
from collections.abc import Iterable, Iterator
from secrets import token_hex

from coordinator.http.messages.bodies import (
    BlockEvent,
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from coordinator.text.answer_parser import Piece, Thought
from coordinator.text.cut_json import completed_object
from coordinator.text.tool_events import Arguments, CallBegins, Content


class BlockEvents:
    """Events of the blocks of an answer. One block is open at a time; a piece of another kind, or
    another call, begins the next. Without ``includes_thought`` the block of the thought stays
    empty."""

    def __init__(self, *, includes_thought: bool) -> None:
        self._includes_thought = includes_thought
        self._index = -1
        self._open: type[ContentBlock] | None = None
        self._thought = hashlib.sha256()

    def of(self, pieces: Iterable[Piece]) -> Iterator[BlockEvent]:
        for piece in pieces:
            match piece:
                case Thought(text):
                    if self._open is not ThinkingBlock:
                        yield from self._begin(ThinkingBlock(thinking="", signature=""))
                    self._thought.update(text.encode())
                    if self._includes_thought:
                        yield ContentBlockDelta(self._index, ThinkingDelta(text))
                case Content(text):
                    if self._open is not TextBlock:
                        yield from self._begin(TextBlock(text=""))
                    yield ContentBlockDelta(self._index, TextDelta(text))
                case CallBegins(_, name):
                    yield from self._begin(ToolUseBlock(id=_call_id(), name=name, input={}))
                case Arguments(_, text):
                    assert self._open is ToolUseBlock, "arguments outside of a call"
                    yield ContentBlockDelta(self._index, InputJsonDelta(text))

    def close(self) -> Iterator[BlockEvent]:
        """End the block that is open, if one is."""
        if self._open is ThinkingBlock:
            signature = self._thought.hexdigest()
            yield ContentBlockDelta(self._index, SignatureDelta(signature))
        if self._open is not None:
            yield ContentBlockStop(self._index)
        self._open = None

    def _begin(self, block: ContentBlock) -> Iterator[BlockEvent]:
        yield from self.close()
        self._index += 1
        self._open = type(block)
        yield ContentBlockStart(self._index, block)


def whole_blocks(events: Iterable[BlockEvent]) -> list[ContentBlock]:
    """The blocks that a client assembles from these events."""
    blocks: list[ContentBlock] = []
    arguments = ""
    for event in events:
        if isinstance(event, ContentBlockStart):
            blocks.append(event.content_block)
            arguments = ""
        elif isinstance(event, ContentBlockDelta):
            match blocks[-1], event.delta:
                case TextBlock() as written, TextDelta(text):
                    written.text += text
                case ThinkingBlock() as thought, ThinkingDelta(text):
                    thought.thinking += text
                case ThinkingBlock() as thought, SignatureDelta(signature):
                    thought.signature = signature
                case _, InputJsonDelta(piece):
                    arguments += piece
        elif isinstance(call := blocks[-1], ToolUseBlock):
            call.input = completed_object(arguments) or {}
    return blocks


def _call_id() -> str:
    return f"toolu_{token_hex(12)}"
