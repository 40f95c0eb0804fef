"""One choice of a response: tokens in, text out."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from coordinator.core.contract import GenerationFailed, Token, TokenStream
from coordinator.text.detokenizer import Detokenizer
from coordinator.text.stops import StopMatcher
from transport.wire.sampling import FinishReason


@dataclass(slots=True)
class Delta:
    """What came since the last delta. ``offsets[i]`` is how much text came before ``tokens[i]``."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    finish: FinishReason | None = None


class Choice:
    """A generation's stream as text deltas, cut at the first stop string.

    ``stop_ids`` are the ids whose text is not part of the output when they end it. Before
    ``min_tokens`` are out, stop strings do not count.
    """

    def __init__(
        self,
        stream: TokenStream,
        detokenizer: Detokenizer,
        stops: StopMatcher,
        *,
        stop_ids: frozenset[int],
        min_tokens: int = 0,
        include_stop: bool = False,
        role_first: bool = False,
    ) -> None:
        self.stream = stream
        self._detokenizer = detokenizer
        self._stops = stops
        self._stop_ids = stop_ids
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._role_first = role_first

    async def deltas(self) -> AsyncIterator[Delta]:
        """Deltas with text, the last one alone perhaps without; with ``role_first`` the first one
        does not wait for text either. Raises GenerationFailed."""
        delta = Delta()
        num_tokens = text_len = 0
        eager = self._role_first
        async for token in self.stream:
            if delta.finish:
                break
            num_tokens += 1
            delta.tokens.append(token)
            delta.offsets.append(text_len)
            stopped_by_id = token.finish == "stop" and token.token_id in self._stop_ids
            text = ""
            if not stopped_by_id or self._include_stop:
                text = self._detokenizer.push(token.token_id)
            if token.finish:
                text += self._detokenizer.flush()
            text_len += len(text)
            if num_tokens <= self._min_tokens:
                delta.text += text
            else:
                out, stopped = self._stops.push(text, include_stop=self._include_stop)
                delta.text += out
                if stopped:
                    delta.finish = "stop"
                    self.stream.stop_early()
                    break
            if token.finish:
                delta.finish = token.finish  # and go on to the end of the stream
            elif delta.text or eager:
                yield delta
                delta, eager = Delta(), False
        if delta.finish is None:
            raise GenerationFailed("ended_early", "the generation ended without a reason")
        delta.text += self._stops.flush()
        yield delta
