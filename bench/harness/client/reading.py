"""Turns the bytes of an exchange into the record of a completion: strictly, and without exceptions.

Every exchange gives a record. It names the server's first mistake and keeps everything before it.
"""

from typing import Any

import msgspec

from bench.harness.client.events import events
from bench.harness.client.exchange import Exchange
from bench.harness.client.record import Arrival, Failure, Record, Usage

_SHOWN = 300


class _Said(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class _Body(msgspec.Struct):
    id: Any = ""
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    prompt_token_ids: list[int] | None = None


_decode = msgspec.json.Decoder(_Body).decode


class _Reader:
    """Collects the events of one response, or its single body."""

    def __init__(self) -> None:
        self.answer_id = ""
        self.arrivals: list[Arrival] = []
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.token_ids: list[int] | None = None
        self.prompt_token_ids: list[int] | None = None
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.ended = False
        self.num_after_end = 0

    def take(self, at_s: float, data: bytes) -> tuple[Failure, str] | None:
        """Read one event; returns what is wrong with it, or None."""
        if data.strip() == b"[DONE]":
            self.ended = True
            return None
        if self.ended:
            self.num_after_end += 1
        try:
            body = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Failure.GARBAGE, f"{error}; got {_show(data)}"
        if body.error is not None:
            return Failure.STREAM_ERROR, _show(data)
        if body.choices is None and body.usage is None:
            return Failure.GARBAGE, f"no choices in {_show(data)}"
        self.answer_id = str(body.id)
        self.usage = body.usage or self.usage
        self.prompt_token_ids = body.prompt_token_ids or self.prompt_token_ids
        for choice in body.choices or ():
            if choice.index == 0:  # requests ask for one choice
                self._choice(at_s, choice)
        return None

    def _choice(self, at_s: float, choice: _Choice) -> None:
        said = choice.delta or choice.message or _Said()
        text = choice.text or said.content or ""
        reasoning = said.reasoning_content or said.reasoning or ""
        ids = choice.token_ids or []
        self.texts.append(text)
        self.reasoning.append(reasoning)
        if choice.token_ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids += ids
        self.prompt_token_ids = choice.prompt_token_ids or self.prompt_token_ids
        self.finish_reason = choice.finish_reason or self.finish_reason
        num_chars = len(text) + len(reasoning)
        if not num_chars and not ids:
            return  # a role, a finish reason, or text held back: no token
        if self.arrivals and self.arrivals[-1].at_s == at_s:
            last = self.arrivals.pop()
            self.arrivals.append(
                Arrival(
                    at_s, last.num_events + 1, last.num_chars + num_chars, last.num_ids + len(ids)
                )
            )
        else:
            self.arrivals.append(Arrival(at_s, 1, num_chars, len(ids)))


def read(exchange: Exchange) -> Record:
    """The record of a completion request. Never raises."""
    assert exchange.done_at_s is not None, "the exchange goes on"
    reader = _Reader()
    failure, detail = exchange.failure, exchange.detail
    if exchange.status not in (None, 200):
        if failure is None:
            failure, detail = Failure.HTTP, f"HTTP {exchange.status}: {_show(exchange.body)}"
    elif exchange.streamed:
        failure, detail = _read_stream(exchange, reader)
    elif failure is None:
        failure, detail = _read_body(exchange, reader)
    return Record(
        due_at_s=exchange.due_at_s,
        sent_at_s=exchange.sent_at_s,
        first_byte_at_s=exchange.first_byte_at_s,
        done_at_s=exchange.done_at_s,
        streamed=exchange.streamed,
        status=exchange.status,
        retry_after=exchange.headers.get("retry-after"),
        answer_id=reader.answer_id,
        arrivals=tuple(reader.arrivals),
        text="".join(reader.texts),
        reasoning="".join(reader.reasoning),
        token_ids=None if reader.token_ids is None else tuple(reader.token_ids),
        prompt_token_ids=(
            None if reader.prompt_token_ids is None else tuple(reader.prompt_token_ids)
        ),
        usage=reader.usage,
        finish_reason=reader.finish_reason,
        failure=failure,
        detail=detail,
        remarks=_remarks(exchange, reader) if failure is None else (),
        num_bytes=exchange.num_bytes,
    )


def _read_stream(exchange: Exchange, reader: _Reader) -> tuple[Failure | None, str]:
    num_events = 0
    for event in events(exchange.pieces):
        num_events += 1
        if (wrong := reader.take(event.at_s, event.data)) is not None:
            return wrong
    if exchange.failure is not None:
        return exchange.failure, exchange.detail
    if not num_events:
        return Failure.GARBAGE, f"no event in a stream of {exchange.num_bytes} bytes: " + _show(
            exchange.body
        )
    if not reader.ended and reader.finish_reason is None:
        return Failure.TRUNCATED, f"neither finish_reason nor [DONE] after {num_events} events"
    return None, ""


def _read_body(exchange: Exchange, reader: _Reader) -> tuple[Failure | None, str]:
    assert exchange.done_at_s is not None
    if (wrong := reader.take(exchange.done_at_s, exchange.body)) is not None:
        return wrong
    if not reader.texts:
        return Failure.GARBAGE, f"no completion in {_show(exchange.body)}"
    return None, ""


def _remarks(exchange: Exchange, reader: _Reader) -> tuple[str, ...]:
    """Deviations from the API that are no failures."""
    found = []
    if exchange.streamed and not reader.ended:
        found.append("no [DONE]")
    if reader.num_after_end:
        found.append("events after [DONE]")
    if reader.finish_reason is None:
        found.append("no finish_reason")
    if reader.usage is None:
        found.append("no usage")
    return tuple(found)


def _show(data: bytes) -> str:
    text = data[:_SHOWN].decode(errors="replace")
    return text + ("…" if len(data) > _SHOWN else "")
