"""The events of a streamed response. ``type`` is also the name of each event; ``sequence_number``
counts them from 0."""

from msgspec import Struct

from coordinator.http.response_schemas import TokenLogprob
from coordinator.http.responses.schemas import (
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseBody,
    SummaryText,
)


class Event(Struct, tag_field="type", kw_only=True):
    sequence_number: int = 0  # set when it is sent


class ResponseCreated(Event, tag="response.created", kw_only=True):
    response: ResponseBody


class ResponseInProgress(Event, tag="response.in_progress", kw_only=True):
    response: ResponseBody


class ResponseCompleted(Event, tag="response.completed", kw_only=True):
    response: ResponseBody


class ResponseIncomplete(Event, tag="response.incomplete", kw_only=True):
    response: ResponseBody


class ResponseFailed(Event, tag="response.failed", kw_only=True):
    response: ResponseBody


class StreamError(Event, tag="error", kw_only=True):
    """Sent before ``response.failed``, for clients that read only this event."""

    code: str | None
    message: str
    param: str | None


class OutputItemAdded(Event, tag="response.output_item.added", kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemDone(Event, tag="response.output_item.done", kw_only=True):
    output_index: int
    item: OutputItem


class ItemEvent(Event, kw_only=True):
    item_id: str
    output_index: int


class PartEvent(ItemEvent, kw_only=True):
    """An event about part 0 of an item, which has no other part."""

    content_index: int = 0


class ContentPartAdded(PartEvent, tag="response.content_part.added", kw_only=True):
    part: OutputText | ReasoningText


class ContentPartDone(PartEvent, tag="response.content_part.done", kw_only=True):
    part: OutputText | ReasoningText


class OutputTextDelta(PartEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(PartEvent, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(PartEvent, tag="response.reasoning_text.delta", kw_only=True):
    delta: str


class ReasoningTextDone(PartEvent, tag="response.reasoning_text.done", kw_only=True):
    text: str


class SummaryEvent(ItemEvent, kw_only=True):
    summary_index: int = 0


class SummaryPartAdded(SummaryEvent, tag="response.reasoning_summary_part.added", kw_only=True):
    part: SummaryText


class SummaryTextDelta(SummaryEvent, tag="response.reasoning_summary_text.delta", kw_only=True):
    delta: str


class SummaryTextDone(SummaryEvent, tag="response.reasoning_summary_text.done", kw_only=True):
    text: str


class SummaryPartDone(SummaryEvent, tag="response.reasoning_summary_part.done", kw_only=True):
    part: SummaryText


class ArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class ArgumentsDone(ItemEvent, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


EVENTS: tuple[type[Event], ...] = (
    ResponseCreated, ResponseInProgress, OutputItemAdded, ContentPartAdded, OutputTextDelta,
    OutputTextDone, ReasoningTextDelta, ReasoningTextDone, SummaryPartAdded, SummaryTextDelta,
    SummaryTextDone, SummaryPartDone, ContentPartDone, ArgumentsDelta, ArgumentsDone,
    OutputItemDone, ResponseCompleted, ResponseIncomplete, ResponseFailed, StreamError,
)  # fmt: skip
