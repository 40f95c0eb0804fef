"""An answer in the form of the Messages API, whole or as events."""

from collections.abc import Sequence

from msgspec import Struct

from coordinator.http.answer import sse
from coordinator.http.choice import Delta
from coordinator.http.errors import ApiError
from coordinator.http.messages.block_events import BlockEvents, whole_blocks
from coordinator.http.messages.bodies import (
    ContentBlock,
    Message,
    MessageDelta,
    MessagesEvent,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    StopDelta,
    StopReason,
)
from coordinator.http.messages.error_form import messages_error
from coordinator.text.answer_parser import AnswerParser, Piece
from telemetry.logs import bound_request


class MessagesAnswer:
    """The Answer (coordinator/http/answer.py) of one choice.

    ``fills_context``: the output is limited by the context, to fewer than the requested
    ``max_tokens``.
    """

    def __init__(
        self,
        message_id: str,
        model: str,
        prompt_tokens: int,
        parser: AnswerParser,
        *,
        includes_thought: bool,
        fills_context: bool,
    ) -> None:
        self._id = message_id
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._parser = parser
        self._fills_context = fills_context
        self._blocks = BlockEvents(includes_thought=includes_thought)
        self._output_tokens = self._cached_tokens = 0
        self._started = False
        self._last = Delta()

    def events(self, index: int, delta: Delta) -> bytes:
        found: list[MessagesEvent] = []
        pieces = self._take(delta)
        if not self._started:
            self._started = True
            found += [MessageStart(self._message([])), Ping()]
        found += self._blocks.of(pieces)
        return _written(found)

    async def end(self) -> bytes:
        stop = StopDelta(stop_reason=self._stop_reason(), stop_sequence=self._last.stop)
        end = (MessageDelta(stop, self._usage()), MessageStop())
        return _written([*self._blocks.close(), *end])

    def failure(self, error: ApiError) -> bytes:
        return sse(
            messages_error(error.status, error.message, error.code, bound_request()), "error"
        )

    async def body(self, choices: Sequence[Delta]) -> Struct:
        (choice,) = choices
        pieces = self._take(choice)
        blocks = whole_blocks([*self._blocks.of(pieces), *self._blocks.close()])
        return self._message(blocks, self._stop_reason(), choice.stop)

    def _take(self, delta: Delta) -> list[Piece]:
        self._output_tokens += len(delta.tokens)
        self._cached_tokens += delta.num_reused
        self._last = delta
        return self._parser.push(delta.text, last=delta.finish is not None).pieces

    def _message(
        self,
        content: list[ContentBlock],
        stop_reason: StopReason | None = None,
        stop_sequence: str | None = None,
    ) -> Message:
        return Message(
            id=self._id, model=self._model, content=content, stop_reason=stop_reason,
            stop_sequence=stop_sequence, usage=self._usage(),
        )  # fmt: skip

    def _usage(self) -> MessagesUsage:
        return MessagesUsage(
            input_tokens=self._prompt_tokens - self._cached_tokens,
            output_tokens=self._output_tokens,
            cache_read_input_tokens=self._cached_tokens,
        )

    def _stop_reason(self) -> StopReason:
        if self._last.finish == "length":
            return "model_context_window_exceeded" if self._fills_context else "max_tokens"
        if self._last.stop is not None:
            return "stop_sequence"
        return "tool_use" if self._parser.calls_tools else "end_turn"


def _written(events: Sequence[MessagesEvent]) -> bytes:
    return b"".join(sse(event, str(event.__struct_config__.tag)) for event in events)
