"""Turns the token stream of each choice into text, and merges the choices of a response into one
stream."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, structs

from coordinator.core.contract import GenerationFailed, SequenceRequest, Token, TokenStream
from coordinator.http.logprobs import scorer
from coordinator.http.prompt_logprobs import PromptJson, prompt_logprobs_writer
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.response_schemas import Finish, PromptLogprobs
from coordinator.text.detokenizer import Detokenizer, StopStrings
from coordinator.text.repetition import detector
from coordinator.text.tokenizer import Tokenizer


class Delta(Struct):
    """New output since the last delta."""

    text: str = ""
    tokens: list[Token] = []
    offsets: list[int] = []
    """The length of the text before each of ``tokens``."""
    finish: Finish | None = None
    stop: str | None = None
    """The stop string that ended the output."""
    stop_id: int | None = None
    """The stop token that ended the output, if the request named it."""
    end_id: int | None = None
    """The stop token that ended the output, the model's own included."""
    prompt: PromptJson | None = None
    """Log-probabilities of the prompt, in the first delta if the request asks for them."""
    num_reused: int = 0
    """Prompt tokens that were not computed, in the first delta."""
    scores: list[Any] = []
    """Log-probabilities of each token as logprobs.py writes them; empty unless asked for."""

    @property
    def prompt_logprobs(self) -> PromptLogprobs:
        """The value of vLLM's field ``prompt_logprobs``."""
        return UNSET if self.prompt is None else self.prompt.prompt_logprobs

    @property
    def stop_reason(self) -> int | str | None:
        """The value of vLLM's field ``stop_reason``."""
        if self.finish == "repetition":
            return "repetition_detected"
        return self.stop_id if self.stop is None else self.stop

    @property
    def matched_stop(self) -> int | str | None:
        """The value of SGLang's field ``matched_stop``."""
        return self.end_id if self.stop is None else self.stop


class Choice:
    """One choice as a stream of text deltas. It is cut at the first stop string, or if it repeats
    itself, after ``min_tokens`` tokens at the earliest. A delta has at least ``stream_interval``
    tokens, except the first and the last one."""

    def __init__(
        self,
        stream: TokenStream,
        spec: SequenceRequest,
        request: GenerationRequest,
        stops: StopStrings,
        tokenizer: Tokenizer,
    ) -> None:
        skipped = frozenset() if request.skip_special_tokens is False else tokenizer.special_ids
        self.stream = stream
        self._detokenizer = Detokenizer(tokenizer.token_bytes, skipped)
        self._stops = stops.matcher()
        self._stop_ids = frozenset(spec.stop.stop_token_ids)
        self._eos_ids = () if request.ignore_eos else tokenizer.info.eos_ids
        self._min_tokens = spec.stop.min_tokens
        self._include_stop = bool(request.include_stop_str_in_output)
        self._role_first = isinstance(request, ChatRequest) and bool(request.stream)
        self._every_token = bool(request.return_token_ids)
        self._interval = request.stream_interval or 1
        self._repetition = detector(request.repetition_detection)
        self._prompt = prompt_logprobs_writer(request, spec, tokenizer.token_bytes)
        self._score = scorer(request, tokenizer.token_bytes)
        self._num_tokens = self._text_len = 0

    async def deltas(self) -> AsyncIterator[Delta]:
        """The deltas that have text. Deltas without text are the last one, the first one of a chat
        (it tells the role), and all if token ids are requested. Raises GenerationFailed."""
        delta = Delta()
        eager, interval = self._role_first, 1
        async for token in self.stream:
            if delta.finish:
                break
            if self._num_tokens == 0:
                delta.prompt = await self._read_prompt(token)
                delta.num_reused = token.num_reused
            if self._add(token, delta):
                self.stream.stop_early()
                break
            is_due = len(delta.tokens) >= interval and (delta.text or eager or self._every_token)
            if is_due and not delta.finish:
                yield delta
                delta, eager, interval = Delta(), False, self._interval
        if delta.finish is None:
            raise GenerationFailed("ended_early", "the generation ended without a reason")
        delta.text += self._stops.flush()
        yield delta

    def _add(self, token: Token, delta: Delta) -> bool:
        """Add a token and its text to ``delta``, with ``finish`` if the output ends. Returns True
        if it is cut: the worker would continue."""
        self._num_tokens += 1
        if self._score is not None:
            delta.scores.append(self._score(token))
            # Keep log-probabilities once: open_tokens.py counts them once.
            token = structs.replace(token, logprobs=None)
        delta.tokens.append(token)
        delta.offsets.append(self._text_len)
        text = self._text_of(token, delta)
        self._text_len += len(text)
        delta.finish = token.finish
        repeats = self._repetition.push(token.token_id)
        if self._num_tokens <= self._min_tokens:
            delta.text += text
            return False
        out, delta.stop = self._stops.push(text, include_stop=self._include_stop)
        delta.text += out
        if delta.stop:
            delta.finish = "stop"
            return True
        if repeats and not token.finish:
            delta.finish = "repetition"
            return True
        return False

    def _text_of(self, token: Token, delta: Delta) -> str:
        """The text that a token completes: none for a stop token, which ``delta`` gets to name."""
        stops = token.finish == "stop" and token.token_id in self._stop_ids
        if stops:
            delta.end_id = token.token_id
            delta.stop_id = None if token.token_id in self._eos_ids else token.token_id
        text = "" if stops and not self._include_stop else self._detokenizer.push(token.token_id)
        return text + self._detokenizer.flush() if token.finish else text

    async def _read_prompt(self, first: Token) -> PromptJson | None:
        return None if self._prompt is None else await self._prompt.read(first.prompt_logprobs)


class NoOutput(Choice):
    """A choice of a request for no output (``max_tokens`` 0). One token ends the computation of its
    prompt, and is no part of the answer."""

    async def deltas(self) -> AsyncIterator[Delta]:
        """One delta without text. Raises GenerationFailed."""
        async for token in self.stream:
            prompt = await self._read_prompt(token)
            yield Delta(prompt=prompt, num_reused=token.num_reused, finish="length")


def choices_of(
    request: GenerationRequest,
    specs: Sequence[SequenceRequest],
    streams: Sequence[TokenStream],
    tokenizer: Tokenizer,
) -> list[Choice]:
    """One choice for each of ``specs``, with its stream."""
    kind = NoOutput if request.num_output_asked == 0 else Choice
    stops = StopStrings(request.stop_strings)
    pairs = zip(streams, specs, strict=True)
    return [kind(stream, spec, request, stops, tokenizer) for stream, spec in pairs]


async def merged(choices: Sequence[Choice]) -> AsyncIterator[tuple[int, Delta]]:
    """Yield (index, delta) pairs until all choices have ended. The first failure ends them all."""
    if len(choices) == 1:
        async for delta in choices[0].deltas():
            yield 0, delta
        return

    # Tokens that wait for a slow client stay in the streams of the core, which count them.
    queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue(len(choices))

    async def forward(index: int, choice: Choice) -> None:
        try:
            async for delta in choice.deltas():
                await queue.put((index, delta))
            await queue.put((index, None))
        except Exception as error:  # raised again below, in the consumer
            await queue.put((index, error))

    tasks = [asyncio.create_task(forward(i, choice)) for i, choice in enumerate(choices)]
    try:
        num_open = len(tasks)
        while num_open:
            index, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()


async def collected(choices: Sequence[Choice]) -> list[Delta]:
    """The whole output of each choice as one delta."""
    whole = [Delta() for _ in choices]
    texts: list[list[str]] = [[] for _ in choices]
    async for index, delta in merged(choices):
        texts[index].append(delta.text)
        whole[index].tokens += delta.tokens
        whole[index].offsets += delta.offsets
        whole[index].scores += delta.scores
        whole[index].prompt = whole[index].prompt or delta.prompt
        whole[index].num_reused += delta.num_reused
        whole[index].finish = delta.finish
        whole[index].stop, whole[index].stop_id = delta.stop, delta.stop_id
        whole[index].end_id = delta.end_id
    for delta, parts in zip(whole, texts, strict=True):
        delta.text = "".join(parts)
    return whole
