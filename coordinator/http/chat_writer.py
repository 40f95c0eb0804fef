"""Makes the bodies of a chat from its choices: thought, content and tool calls, whole or in
chunks."""

from collections.abc import Callable, Sequence
from secrets import token_hex

from msgspec import UNSET, Struct, UnsetType, structs

from coordinator.http.answer import Head
from coordinator.http.choice import Delta
from coordinator.http.logprobs import chat_logprobs
from coordinator.http.request_schemas import ChatRequest
from coordinator.http.response_schemas import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatFinish,
    ChatLogprobs,
    FunctionCall,
    FunctionCallDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from coordinator.text.answer_parser import AnswerParser, Parts
from coordinator.text.tool_events import Arguments, CallBegins


class ChatWriter:
    """Writes one conversation with n choices. ``parser``: makes the parser of one choice.
    ``thinks``: answers may begin with a thought. The request is not kept: it may be large, and a
    stream may be long."""

    def __init__(
        self,
        head: Head,
        request: ChatRequest,
        parser: Callable[[], AnswerParser],
        *,
        thinks: bool,
    ) -> None:
        self._head = head
        self._new_parser = parser
        self._thinks = thinks
        self._includes_thought = request.include_reasoning is not False
        self._parsers: dict[int, AnswerParser] = {}
        self._held: dict[int, Delta] = {}

    def chunk(self, index: int, delta: Delta, usage: Usage | UnsetType | None) -> Struct | None:
        """The chunk of a delta. None if it is not known yet what the text belongs to; its tokens
        are then part of a later chunk."""
        first_of_all, first = not self._parsers, index not in self._parsers
        parts = self._parser(index).push(delta.text, last=delta.finish is not None)
        wants_ids = self._head.prompt_ids is not None
        if not (parts or first or delta.finish or wants_ids):
            self._hold(index, delta)
            return None
        delta = self._with_held(index, delta)
        message = self._delta(parts)
        if first:
            message.role, message.content = "assistant", parts.content
        choice = ChatChunkChoice(
            index=index,
            delta=message,
            logprobs=self._logprobs(delta),
            finish_reason=self._finish(index, delta),
            stop_reason=delta.stop_reason if delta.finish else UNSET,
            matched_stop=delta.matched_stop if delta.finish else UNSET,
            token_ids=self._head.token_ids(delta),
            prompt_token_ids=self._head.prompt(0, wanted=first),
        )
        # vLLM puts the prompt's ids beside the choices of a chat, and into those of a completion.
        return self._chunk([choice], usage, self._head.prompt(0, wanted=first_of_all))

    def last_chunk(self, usage: Usage) -> Struct:
        return self._chunk([], usage, UNSET)

    def body(self, choices: Sequence[Delta], usage: Usage) -> Struct:
        head = self._head
        return ChatCompletion(
            id=head.response_id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=[self._whole(index, choice) for index, choice in enumerate(choices)],
            usage=usage,
            prompt_token_ids=head.prompt(0, wanted=True),
            prompt_logprobs=choices[0].prompt_logprobs,
        )

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | UnsetType | None,
        prompt_ids: list[int] | UnsetType,
    ) -> ChatCompletionChunk:
        head = self._head
        return ChatCompletionChunk(
            id=head.response_id, created=head.created, model=head.model,
            system_fingerprint=head.fingerprint, choices=choices, usage=usage,
            prompt_token_ids=prompt_ids,
        )  # fmt: skip

    def _whole(self, index: int, choice: Delta) -> ChatChoice:
        parts = self._parser(index).push(choice.text, last=True)
        thought = parts.thought if self._thinks and self._includes_thought else UNSET
        calls = _whole_calls(parts)
        finish = self._finish(index, choice)
        assert finish is not None, "a choice that has not ended"
        return ChatChoice(
            index=index,
            message=AssistantMessage(
                content=parts.content or (None if calls else ""),
                reasoning_content=thought,
                reasoning=thought,
                tool_calls=calls or UNSET,
            ),
            logprobs=self._logprobs(choice),
            finish_reason=finish,
            stop_reason=choice.stop_reason,
            matched_stop=choice.matched_stop,
            token_ids=self._head.token_ids(choice),
            prompt_token_ids=self._head.prompt(0, wanted=True),
        )

    def _parser(self, index: int) -> AnswerParser:
        if index not in self._parsers:
            self._parsers[index] = self._new_parser()
        return self._parsers[index]

    def _delta(self, parts: Parts) -> ChatDelta:
        thought = (parts.thought if self._includes_thought else "") or UNSET
        return ChatDelta(
            content=parts.content or UNSET,
            reasoning_content=thought,
            reasoning=thought,
            tool_calls=_call_deltas(parts) or UNSET,
        )

    def _finish(self, index: int, delta: Delta) -> ChatFinish | None:
        called = self._parser(index).calls_tools
        return "tool_calls" if called and delta.finish == "stop" else delta.finish

    def _hold(self, index: int, delta: Delta) -> None:
        held = self._held.setdefault(index, Delta())
        held.tokens += delta.tokens
        held.offsets += delta.offsets
        held.scores += delta.scores

    def _with_held(self, index: int, delta: Delta) -> Delta:
        held = self._held.pop(index, None)
        if held is None:
            return delta
        return structs.replace(
            delta,
            tokens=held.tokens + delta.tokens,
            offsets=held.offsets + delta.offsets,
            scores=held.scores + delta.scores,
        )

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        return chat_logprobs(delta.scores) if self._head.logprobs else None


def _call_deltas(parts: Parts) -> list[ToolCallDelta]:
    """One delta for each call that has new text."""
    found: list[ToolCallDelta] = []
    for event in parts.calls:
        if isinstance(event, CallBegins):
            function = FunctionCallDelta(name=event.name, arguments="")
            found.append(
                ToolCallDelta(index=event.index, id=_call_id(), type="function", function=function)
            )
        elif isinstance(event, Arguments):
            if not found or found[-1].index != event.index:
                function = FunctionCallDelta(arguments="")
                found.append(ToolCallDelta(index=event.index, function=function))
            found[-1].function.arguments += event.text
    return found


def _whole_calls(parts: Parts) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for delta in _call_deltas(parts):
        assert not isinstance(delta.id, UnsetType)
        assert not isinstance(delta.function.name, UnsetType)
        function = FunctionCall(name=delta.function.name, arguments=delta.function.arguments)
        calls.append(ToolCall(id=delta.id, function=function))
    return calls


def _call_id() -> str:
    return f"call_{token_hex(12)}"
